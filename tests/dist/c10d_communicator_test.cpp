// Several processes over Gloo on the loopback interface.
#include <chrono>
#include <string>
#include <thread>

#include "base/error.h"
#include "dist/communicator.h"
#include "tests/dist/collectives.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

namespace osdn::dist {
namespace c10d_communicator_test {

constexpr auto kTimeout = std::chrono::seconds(30);

std::unique_ptr<Communicator> join(int rank, int world_size, int port,
                                   std::chrono::seconds timeout = kTimeout) {
  at::set_num_threads(1);
  return make_communicator(test::rank_on_loopback(rank, world_size, port), at::kCPU, timeout);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace c10d_communicator_test

TEST_CASE("2 and 4 processes: every collective gives what it promises", "[c10d_communicator][dist]") {
  for (const int world : {2, 4}) {
    const int port = test::free_port();
    test::Ranks ranks(world, [&](int rank) {
      return test::all_collectives(*c10d_communicator_test::join(rank, world, port));
    });
    for (const test::RankResult& result : ranks.wait_all()) {
      INFO(world << " ranks: " << result.text);
      CHECK(result.exit_code == 0);
      CHECK(result.text == "done");
    }
  }
}

TEST_CASE("sums have the same bits on every rank and in every job of as many ranks",
          "[c10d_communicator][dist]") {
  constexpr int kWorld = 4;
  std::vector<std::string> found;
  for (int job = 0; job < 2; ++job) {
    const int port = test::free_port();
    test::Ranks ranks(kWorld, [&](int rank) {
      const auto group = c10d_communicator_test::join(rank, kWorld, port);
      at::manual_seed(static_cast<uint64_t>(rank));
      at::Tensor values = at::randn({1000}) * at::exp(8 * at::randn({1000}));
      const auto started =
          group->start({.kind = CollectiveKind::kAllReduceSum, .range = values, .root = 0, .what = "values"});
      at::Tensor others = at::randn({64});
      group->all_reduce_sum(others, "values beside them");
      started->wait();
      return std::string(static_cast<const char*>(values.data_ptr()), values.nbytes());
    });
    for (test::RankResult& result : ranks.wait_all()) {
      REQUIRE(result.exit_code == 0);
      found.push_back(std::move(result.text));
    }
  }
  for (const std::string& bits : found) CHECK(bits == found.front());
}

TEST_CASE("a rank that stops or dies ends the others' collective with rank, step and name",
          "[c10d_communicator][dist]") {
  for (const int end : {SIGSTOP, SIGKILL}) {
    const int port = test::free_port();
    const auto start = std::chrono::steady_clock::now();
    test::Ranks ranks(2, [&](int rank) -> std::string {
      const auto group = c10d_communicator_test::join(rank, 2, port, std::chrono::seconds(2));
      if (rank == 1) ::raise(end);
      group->set_step(5);
      at::Tensor gradients = at::ones({64});
      group->all_reduce_sum(gradients, "gradients of bucket 3");
      return "not reached";
    });
    const test::RankResult result = ranks.wait(0);
    INFO(result.text);
    CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
    CHECK(c10d_communicator_test::contains(result.text,
                                           "rank 0 of 2, step 5: all_reduce_sum of gradients of bucket 3: "));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  }
}

TEST_CASE("what one rank posts on the board every other reads, from any thread",
          "[c10d_communicator][dist]") {
  const int port = test::free_port();
  test::Ranks ranks(2, [&](int rank) {
    const auto group = c10d_communicator_test::join(rank, 2, port);
    const auto board = group->open_board();
    std::string read;
    std::thread background([&] {
      board->post("from " + std::to_string(rank), "text " + std::to_string(rank));
      for (std::optional<std::string> found; !(found = board->read("from " + std::to_string(1 - rank)));)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      read = board->read("from " + std::to_string(1 - rank)).value();
      if (board->read("from nobody")) read = "something that nobody wrote";
    });
    for (int i = 0; i < 20; ++i) group->barrier("while they talk");
    background.join();
    group->barrier("the end");
    return read;
  });
  const auto results = ranks.wait_all();
  CHECK(results[0].text == "text 1");
  CHECK(results[1].text == "text 0");
}

}  // namespace osdn::dist
