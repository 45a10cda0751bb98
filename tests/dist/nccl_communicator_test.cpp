// Several processes over NCCL, one a GPU; what needs two GPUs runs where there are two.
#include <algorithm>
#include <chrono>
#include <string>

#include "base/error.h"
#include "dist/communicator.h"
#include "tensor/device.h"
#include "tensor/device_graph.h"
#include "tests/dist/collectives.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

namespace osdn::dist {
namespace nccl_communicator_test {

/// Asked in a process of its own: one that has spoken to the driver must not fork ranks that do.
int visible_gpus() {
  test::Ranks one(1, [](int) { return std::to_string(num_gpus()); });
  return std::stoi(one.wait(0).text);
}

std::unique_ptr<Communicator> join(int rank, int world_size, int gpu, int port,
                                   std::chrono::seconds timeout) {
  use_gpu(gpu);
  return make_communicator(test::rank_on_loopback(rank, world_size, port),
                           at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu)), timeout);
}

}  // namespace nccl_communicator_test

TEST_CASE("every collective gives what it promises, on up to four GPUs", "[nccl_communicator][cuda]") {
  namespace t = nccl_communicator_test;
  const int world = std::min(4, t::visible_gpus());
  REQUIRE(world >= 1);
  const int port = test::free_port();
  test::Ranks ranks(world, [&](int rank) {
    return test::all_collectives(*t::join(rank, world, rank, port, std::chrono::seconds(60)));
  });
  for (const test::RankResult& result : ranks.wait_all()) {
    INFO(world << " GPUs: " << result.text);
    CHECK(result.exit_code == 0);
    CHECK(result.text == "done");
  }
}

TEST_CASE("two ranks on one GPU are told apart before NCCL is asked", "[nccl_communicator][cuda]") {
  namespace t = nccl_communicator_test;
  const int port = test::free_port();
  test::Ranks ranks(2, [&](int rank) {
    t::join(rank, 2, 0, port, std::chrono::seconds(5));
    return std::string("joined");
  });
  int refused = 0;
  for (const test::RankResult& result : ranks.wait_all()) {
    INFO(result.text);
    if (result.text.find("visible: another rank of this job uses that GPU already") != std::string::npos) {
      CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
      ++refused;
    }
  }
  CHECK(refused == 1);
}

TEST_CASE("of two GPUs, one whose rank stays away ends the other's collective by time-out, with its name",
          "[nccl_communicator][cuda]") {
  namespace t = nccl_communicator_test;
  const int gpus = t::visible_gpus();
  REQUIRE(gpus >= 1);
  if (gpus < 2) return;
  const int port = test::free_port();
  const auto start = std::chrono::steady_clock::now();
  test::Ranks ranks(2, [&](int rank) -> std::string {
    const auto group = t::join(rank, 2, rank, port, std::chrono::seconds(4));
    at::Tensor gradients = at::ones({1 << 20}, at::TensorOptions().device(group->device()));
    group->all_reduce_sum(gradients, "warm-up");
    group->barrier("warm-up");
    if (rank == 1) ::raise(SIGSTOP);
    group->set_step(5);
    group->all_reduce_sum(gradients, "gradients of bucket 3");
    const double sum = group->to_host(gradients.sum()).item<double>();
    return "not noticed: " + std::to_string(sum);
  });
  const test::RankResult result = ranks.wait(0);
  INFO(result.text);
  CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(result.text.find(
            "rank 0 of 2, step 5: all_reduce_sum of gradients of bucket 3: not finished within 4 s") !=
        std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE(
    "of two GPUs, collectives in a captured graph run at every replay, and one that does not end is named",
    "[nccl_communicator][cuda]") {
  namespace t = nccl_communicator_test;
  const int gpus = t::visible_gpus();
  REQUIRE(gpus >= 1);
  if (gpus < 2) return;
  const int port = test::free_port();
  test::Ranks ranks(2, [&](int rank) -> std::string {
    const auto group = t::join(rank, 2, rank, port, std::chrono::seconds(4));
    const auto on_gpu = at::TensorOptions().device(group->device());
    constexpr int64_t kPart = 1 << 19;
    at::Tensor gradients = at::zeros({2 * kPart}, on_gpu);
    at::Tensor weights = at::zeros({2 * kPart}, on_gpu);
    DeviceGraph graph;
    const auto work = [&] {
      const auto sums = group->start({.kind = CollectiveKind::kReduceScatter,
                                      .range = gradients,
                                      .root = 0,
                                      .what = "gradients of bucket 0"});
      sums->wait();
      weights.narrow(0, rank * kPart, kPart).copy_(gradients.narrow(0, rank * kPart, kPart));
      group->all_gather(weights, "weights of bucket 0");
    };
    work();
    const int64_t recording = group->begin_recording();
    graph.record(work);
    for (int64_t step = 1; step <= 3; ++step) {
      group->set_step(step);
      gradients.fill_(static_cast<double>(step * (rank + 1)));
      weights.fill_(-1.0);
      graph.replay();
      group->watch_replay(recording);
      if (!weights.eq(3.0 * static_cast<double>(step)).all().item<bool>())
        return "wrong sums in replay " + std::to_string(step);
      group->check();
    }
    group->barrier("replays");
    if (rank == 1) ::raise(SIGSTOP);
    group->set_step(4);
    graph.replay();
    group->watch_replay(recording);
    const double sum = group->to_host(weights.sum()).item<double>();
    return "not noticed: " + std::to_string(sum);
  });
  const test::RankResult result = ranks.wait(0);
  INFO(result.text);
  CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(result.text.find(
            "rank 0 of 2, step 4: reduce_scatter of gradients of bucket 0: not finished within 4 s") !=
        std::string::npos);
}

}  // namespace osdn::dist
