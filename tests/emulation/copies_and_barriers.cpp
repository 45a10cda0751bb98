#include "tests/emulation/copies_and_barriers.h"

#include <cstring>
#include <string>
#include <unordered_map>

#include "tests/emulation/cuda_on_cpu.h"
#include "tests/emulation/race_check.h"

namespace osdn::emulation {
namespace {

struct Mbarrier {
  int arrivals;
  int missing;
  uint64_t phase = 0;
  // What the arrivals up to the phase's know, and up to the last one's.
  races::Phase now = races::following(nullptr);
  races::Phase last = {};
};
std::unordered_map<uint32_t, Mbarrier> mbarriers;  // by address

void check_shared(uint32_t address, uint32_t bytes) {
  if (address % bytes != 0 || address + bytes > static_cast<uint32_t>(shared_limit))
    fail(std::to_string(bytes) + " bytes at byte " + std::to_string(address) + " of shared memory");
}

Mbarrier& mbarrier_at(uint32_t address, const void* site) {
  const auto found = mbarriers.find(address);
  if (found == mbarriers.end()) fail("no mbarrier was made at byte " + std::to_string(address));
  races::access(shared_memory + address, 8, races::Access::kRead, site);
  return found->second;
}

}  // namespace

void copy_async(uint32_t target, const void* source, uint32_t bytes, bool valid) {
  check_shared(target, bytes);
  if (valid && reinterpret_cast<uintptr_t>(source) % bytes != 0)
    fail("cp.async from an address that is not aligned");
  if (valid) {
    races::access(source, bytes, races::Access::kCopyRead, __builtin_return_address(0));
    std::memcpy(shared_memory + target, source, bytes);
  } else {
    std::memset(shared_memory + target, 0, bytes);
  }
  races::access(shared_memory + target, bytes, races::Access::kCopyWrite, __builtin_return_address(0));
}

void mbarrier_init(uint32_t barrier, int arrivals) {
  check_shared(barrier, 8);
  races::access(shared_memory + barrier, 8, races::Access::kWrite, __builtin_return_address(0));
  mbarriers.insert_or_assign(barrier, Mbarrier{.arrivals = arrivals, .missing = arrivals});
}

void mbarrier_arrive(uint32_t barrier, bool of_copies) {
  Mbarrier& it = mbarrier_at(barrier, __builtin_return_address(0));
  if (of_copies)
    races::arrive_after_copies(it.now);
  else
    races::arrive(it.now);
  if (--it.missing > 0) return;
  it.missing = it.arrivals;
  it.last = it.now;
  it.now = races::following(it.last);
  ++it.phase;
}

void mbarrier_wait(uint32_t barrier, int parity) {
  const Mbarrier& it = mbarrier_at(barrier, __builtin_return_address(0));
  races::Phase awaited = it.last;
  if ((it.phase & 1) == static_cast<uint64_t>(parity)) {
    awaited = it.now;
    wait_while(it.phase, it.phase, "the mbarrier at byte", static_cast<int>(barrier));
  }
  races::leave(awaited);
}

void forget_mbarriers() { mbarriers.clear(); }

}  // namespace osdn::emulation
