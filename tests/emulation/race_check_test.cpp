// The race check (race_check.h) and the scheduler of the emulation, by kernels with one planted fault each
// and by the same kernels without it.
#include "tests/emulation/race_check.h"

#include <string>
#include <vector>

#include "tests/emulation/planted_faults.h"
#include "tests/support/catch.h"

namespace osdn::emulation::race_check_test {

/// What is found of a kernel: faults, or why it could not go on.
std::vector<std::string> found(Planted which, bool faulty) {
  const RaceCheck check;
  try {
    run_planted(which, faulty);
  } catch (const KernelFault& fault) {
    return {fault.what()};
  }
  return check.faults();
}

bool mentions(const std::vector<std::string>& faults, const std::string& words) {
  for (const std::string& fault : faults)
    if (fault.find(words) != std::string::npos) return true;
  return false;
}

void check_planted(Planted which, const std::string& words) {
  CAPTURE(static_cast<int>(which), words);
  for (const std::string& fault : found(which, false)) {
    INFO(fault);
    CHECK(fault.empty());
  }
  std::string all;
  const std::vector<std::string> faults = found(which, true);
  for (const std::string& fault : faults) all += fault + "\n";
  CAPTURE(all);
  CHECK(mentions(faults, words));
}

TEST_CASE("a missing barrier between threads is found, its presence is enough", "[race_check]") {
  check_planted(Planted::kBlockBarrier, "nothing orders them");
  check_planted(Planted::kWarpBarrier, "nothing orders them");
  check_planted(Planted::kReuse, "nothing orders them");
  check_planted(Planted::kNamedBarrier, "nothing orders them");
  check_planted(Planted::kStatic, "a __shared__ variable");
  check_planted(Planted::kLongCopy, "of shared memory");
}

TEST_CASE("what copies read and write is found to be touched before they are over", "[race_check]") {
  check_planted(Planted::kCopyWait, "after a copy of thread");
  check_planted(Planted::kCopySource, "global memory");
  check_planted(Planted::kCopiesOverlap, "a copy of thread 0 writes");
}

TEST_CASE("stages that are handed over too early are found, both ways", "[race_check]") {
  check_planted(Planted::kRing, "a copy of thread");
  check_planted(Planted::kRingSoonFull, "after a copy of thread");
}

TEST_CASE("what a warpgroup's products read must be written, published and left alone", "[race_check]") {
  check_planted(Planted::kGroup, "a product of warp");
  check_planted(Planted::kGroupFence, "no proxy fence lies between");
  check_planted(Planted::kGroupReuse, "after a product of warp");
}

TEST_CASE("the sums of a product are there once it has been waited for, not before", "[race_check]") {
  CHECK(sum_of_product(true) == 16.0f);
  CHECK(sum_of_product(false) == 0.0f);
}

TEST_CASE("blocks of a launch that touch the same memory are found", "[race_check]") {
  check_planted(Planted::kBlocks, "another block of the launch");
  check_planted(Planted::kBlocksRead, "another block of the launch");
}

TEST_CASE("threads that wait for what never comes are named, not waited for", "[race_check]") {
  check_planted(Planted::kBarrierCount, "barrier 1 for 64 threads and, by thread 32, for 96");
  check_planted(Planted::kMissingThreads, "from thread 64 on at barrier 1");
  check_planted(Planted::kForgotten, "at the mbarrier at byte 0");
  check_planted(Planted::kDivergedWarp, "__syncwarp");
}

TEST_CASE("accesses of every width are seen", "[race_check]") {
  const int bytes = GENERATE(2, 4, 8, 16);
  const bool second_reads = GENERATE(false, true);
  CAPTURE(bytes, second_reads);
  const RaceCheck check;
  run_unordered(bytes, second_reads);
  CHECK(mentions(check.faults(), second_reads ? "thread 32 reads byte 64" : "thread 32 writes byte 64"));
}

TEST_CASE("a fault names the kernel and both places in its code", "[race_check]") {
  const std::vector<std::string> faults = found(Planted::kBlockBarrier, true);
  REQUIRE(!faults.empty());
  INFO(faults[0]);
  CHECK(faults[0].find("planted_kernel") != std::string::npos);
  const size_t first = faults[0].find("planted_faults.cpp:");
  REQUIRE(first != std::string::npos);
  CHECK(faults[0].find("planted_faults.cpp:", first + 1) != std::string::npos);
}

}  // namespace osdn::emulation::race_check_test
