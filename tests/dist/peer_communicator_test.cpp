// Several processes that read each other's GPU memory: spread over the GPUs there are, or all on one.
#include <chrono>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "dist/detail/peer_communicator.h"
#include "tensor/device.h"
#include "tests/dist/collectives.h"
#include "tests/dist/exchange_rounds.h"
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
      {.timeout = timeout});
}

}  // namespace peer_communicator_test

TEST_CASE("sums through GPUs' own memory are those of the ranks' order, bit by bit, whoever is late",
          "[peer_communicator][cuda]") {
  namespace t = peer_communicator_test;
  constexpr int64_t kLargest = 40 << 20;  // more than is added in one piece
  for (const int world : {2, 4}) {
    const int port = test::free_port();
    test::Ranks ranks(world, [&](int rank) {
      return test::exchange_rounds(*t::join(rank, world, port, std::chrono::seconds(60)), kLargest);
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
