// Several processes over NCCL, one a GPU; what needs two GPUs runs where there are two.
#include <algorithm>
#include <chrono>
#include <string>

#include "base/error.h"
#include "dist/communicator.h"
#include "tensor/device.h"
#include "tests/dist/collectives.h"
#include "tests/dist/replays.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

namespace osdn::dist {
namespace nccl_communicator_test {

std::unique_ptr<Communicator> join(int rank, int world_size, int gpu, int port,
                                   std::chrono::seconds timeout) {
  use_gpu(gpu);
  return make_communicator(test::rank_on_loopback(rank, world_size, port),
                           at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu)), timeout);
}

}  // namespace nccl_communicator_test

TEST_CASE("every collective gives what it promises, on up to four GPUs", "[nccl_communicator][cuda]") {
  namespace t = nccl_communicator_test;
  const int world = std::min(4, test::visible_gpus());
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
  const int gpus = test::visible_gpus();
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
  const int gpus = test::visible_gpus();
  REQUIRE(gpus >= 1);
  if (gpus < 2) return;
  const int port = test::free_port();
  test::Ranks ranks(2, [&](int rank) -> std::string {
    const auto group = t::join(rank, 2, rank, port, std::chrono::seconds(4));
    const at::Tensor gradients = at::zeros({1 << 20}, at::TensorOptions().device(group->device()));
    return test::replays_until_one_stops(*group, gradients, at::zeros_like(gradients));
  });
  const test::RankResult result = ranks.wait(0);
  INFO(result.text);
  CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(result.text.find(
            "rank 0 of 2, step 4: reduce_scatter of gradients of bucket 0: not finished within 4 s") !=
        std::string::npos);
}

}  // namespace osdn::dist
