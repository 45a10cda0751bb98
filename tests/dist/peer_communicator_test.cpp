// Several processes that read each other's GPU memory: spread over the GPUs there are, or all on one.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "dist/detail/peer_communicator.h"
#include "tensor/device.h"
#include "tests/dist/collectives.h"
#include "tests/dist/replays.h"
#include "tests/dist/staged_communicator.h"
#include "tests/support/ranks.h"

namespace osdn::dist {
namespace peer_communicator_test {

std::unique_ptr<Communicator> join(int rank, int world_size, int port, std::chrono::seconds timeout) {
  const auto gpu = static_cast<at::DeviceIndex>(rank % num_gpus());
  use_gpu(gpu);
  return detail::make_peer_communicator(
      std::make_unique<test::StagedCommunicator>(test::rank_on_loopback(rank, world_size, port),
                                                 at::Device(at::kCUDA, gpu), timeout),
      timeout);
}

/// What a rank brings, the same numbers wherever they are asked for.
at::Tensor values_of(int64_t rank, int64_t round, int64_t n) {
  return at::randn({n}, at::detail::createCPUGenerator(static_cast<uint64_t>(rank * 1000 + round))) *
         std::pow(10.0, static_cast<double>(rank % 3));
}

/// The sum of all ranks' values as their order makes it, [n] fp32.
at::Tensor sum_in_order(int64_t world_size, int64_t round, int64_t n) {
  at::Tensor sum = values_of(0, round, n);
  for (int64_t rank = 1; rank < world_size; ++rank) sum += values_of(rank, round, n);
  return sum;
}

/// Sums and gathers of ranges of shared memory against the same on the CPU, bit by bit; ranks are late in
/// turn.
std::string exchange_rounds(int64_t rank, int64_t world, Communicator& group) {
  constexpr int64_t kPadding = 64;
  constexpr int64_t kLargest = 40 << 20;  // more than is added in one piece
  const at::TensorOptions on_device = at::TensorOptions().device(group.device());
  at::Tensor gradients = at::empty({kLargest + kPadding}, on_device.dtype(at::kFloat));
  at::Tensor weights = at::empty({kLargest + kPadding}, on_device.dtype(at::kBFloat16));
  if (!group.share({gradients, weights})) return "not shared";
  const double kNan = std::numeric_limits<double>::quiet_NaN();
  int64_t round = 0;
  for (const int64_t size : {world, 5 * world, int64_t{1000} * world, kLargest / world * world}) {
    for (int64_t repeat = 0; repeat < 4; ++repeat, ++round) {
      if (round % world == rank) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gradients.fill_(kNan);
      weights.fill_(kNan);
      const at::Tensor range = gradients.narrow(0, kPadding / 2, size);
      const at::Tensor own = values_of(rank, round, size);
      const at::Tensor expected = sum_in_order(world, round, size);
      range.copy_(own);
      const auto scattered = group.start(
          {.kind = CollectiveKind::kReduceScatter, .range = range, .root = 0, .what = "gradients"});
      scattered->wait();
      const int64_t part = size / world;
      const at::Tensor sum = range.narrow(0, rank * part, part);
      if (!sum.cpu().equal(expected.narrow(0, rank * part, part)))
        return fmt::format("reduce_scatter of {} in round {}", size, round);
      // What is gathered hangs on the sum, as weights do on gradients.
      const at::Tensor gathered = weights.narrow(0, kPadding / 2, size);
      gathered.narrow(0, rank * part, part).copy_(sum);
      group.all_gather(gathered, "weights");
      range.copy_(own);
      group.all_reduce_sum(range, "gradients");
      if (!gathered.cpu().equal(expected.to(at::kBFloat16)))
        return fmt::format("all_gather of {} in round {}", size, round);
      if (!range.cpu().equal(expected)) return fmt::format("all_reduce of {} in round {}", size, round);
      if (!gradients.narrow(0, 0, kPadding / 2).isnan().all().item<bool>() ||
          !gradients.narrow(0, kPadding / 2 + size, kPadding / 2).isnan().all().item<bool>())
        return fmt::format("more than the range was written in round {}", round);
    }
  }
  // A sum that the ranks cannot share out evenly.
  const at::Tensor odd = gradients.narrow(0, 3, 2 * world + 1);
  odd.copy_(values_of(rank, round, odd.numel()));
  group.all_reduce_sum(odd, "gradients of the full-precision parameters");
  if (!odd.cpu().equal(sum_in_order(world, round, odd.numel()))) return "all_reduce of an odd number";
  group.check();
  return test::all_collectives(group);
}

}  // namespace peer_communicator_test

TEST_CASE("sums through GPUs' own memory are those of the ranks' order, bit by bit, whoever is late",
          "[peer_communicator][cuda]") {
  namespace t = peer_communicator_test;
  for (const int world : {2, 4}) {
    const int port = test::free_port();
    test::Ranks ranks(world, [&](int rank) {
      return t::exchange_rounds(rank, world, *t::join(rank, world, port, std::chrono::seconds(60)));
    });
    for (const test::RankResult& result : ranks.wait_all()) {
      INFO(world << " ranks: " << result.text);
      CHECK(result.exit_code == 0);
      CHECK(result.text == "done");
    }
  }
}

TEST_CASE("an exchange of GPUs with a rank that has stopped ends by time-out, with its name, at once",
          "[peer_communicator][cuda]") {
  namespace t = peer_communicator_test;
  const int port = test::free_port();
  const auto start = std::chrono::steady_clock::now();
  test::Ranks ranks(2, [&](int rank) -> std::string {
    const auto group = t::join(rank, 2, port, std::chrono::seconds(4));
    at::Tensor gradients = at::ones({1 << 20}, at::TensorOptions().device(group->device()));
    if (!group->share({gradients})) return "not shared";
    group->all_reduce_sum(gradients, "warm-up");
    group->to_host(gradients.sum());
    if (rank == 1) ::raise(SIGSTOP);
    group->set_step(5);
    for (int bucket = 3; bucket < 6; ++bucket)
      group->reduce_scatter(gradients, "gradients of bucket " + std::to_string(bucket));
    const double sum = group->to_host(gradients.sum()).item<double>();
    return "not noticed: " + std::to_string(sum);
  });
  const test::RankResult result = ranks.wait(0);
  INFO(result.text);
  CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(result.text.find(
            "rank 0 of 2, step 5: reduce_scatter of gradients of bucket 3: not finished within 4 s") == 0);
  // Seconds for the start, 4 for the time-out; not the grace period of 10.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(12));
}

TEST_CASE("ranks of which one cannot export its memory all leave it to the other communicator",
          "[peer_communicator][cuda]") {
  namespace t = peer_communicator_test;
  const int port = test::free_port();
  test::Ranks ranks(2, [&](int rank) -> std::string {
    // Memory in pieces that are mapped one by one, as users ask for it, has no handle of the kind.
    if (rank == 1) ::setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 1);
    const auto group = t::join(rank, 2, port, std::chrono::seconds(20));
    at::Tensor gradients = at::full({1 << 20}, rank + 1.0, at::TensorOptions().device(group->device()));
    if (group->share({gradients})) return "shared";
    group->all_reduce_sum(gradients, "gradients");
    return gradients.eq(3).all().item<bool>() ? test::all_collectives(*group) : "wrong sum";
  });
  for (const test::RankResult& result : ranks.wait_all()) {
    INFO(result.text);
    CHECK(result.exit_code == 0);
    CHECK(result.text == "done");
  }
}

TEST_CASE(
    "of two GPUs, exchanges in a captured graph run at every replay, and one that does not end is named",
    "[peer_communicator][cuda]") {
  if (test::visible_gpus() < 2) return;
  const int port = test::free_port();
  const auto start = std::chrono::steady_clock::now();
  test::Ranks ranks(2, [&](int rank) -> std::string {
    use_gpu(rank);
    const auto group =
        make_communicator(test::rank_on_loopback(rank, 2, port),
                          at::Device(at::kCUDA, static_cast<at::DeviceIndex>(rank)), std::chrono::seconds(4));
    const at::Tensor gradients = at::zeros({1 << 20}, at::TensorOptions().device(group->device()));
    const at::Tensor weights = at::zeros_like(gradients);
    if (!group->share({gradients, weights})) return "not shared";
    return test::replays_until_one_stops(*group, gradients, weights);
  });
  const test::RankResult result = ranks.wait(0);
  INFO(result.text);
  CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(result.text.find(
            "rank 0 of 2, step 4: reduce_scatter of gradients of bucket 0: not finished within 4 s") == 0);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(14));
}

}  // namespace osdn::dist
