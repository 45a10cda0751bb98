// What processes that do not find each other are told.
#include <chrono>
#include <string>
#include <thread>

#include "base/error.h"
#include "dist/communicator.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

namespace osdn::dist {
namespace rendezvous_test {

/// `stays` keeps the meeting place open for those who come late, where it is this process'.
std::string join(const LaunchEnvironment& launched, int seconds = 20,
                 std::chrono::milliseconds stays = std::chrono::milliseconds(0)) {
  at::set_num_threads(1);
  const auto group = make_communicator(launched, at::kCPU, std::chrono::seconds(seconds));
  group->barrier("the end");
  std::this_thread::sleep_for(stays);
  return "met";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace rendezvous_test

TEST_CASE("a rank without the others says how many have come, where, and how long it waited",
          "[rendezvous][dist]") {
  const int port = test::free_port();
  test::Ranks ranks(
      1, [&](int rank) { return rendezvous_test::join(test::rank_on_loopback(rank, 2, port), 1); });
  const test::RankResult result = ranks.wait(0);
  INFO(result.text);
  CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(rendezvous_test::contains(
      result.text, "only 1 of 2 ranks have come to 127.0.0.1:" + std::to_string(port) + " within 1 s"));
}

TEST_CASE("a master that nobody reaches is named with its port, within the time-out", "[rendezvous][dist]") {
  const int port = test::free_port();
  // The third belongs to nobody: networks for documentation (RFC 5737) are not routed.
  for (const char* host : {"127.0.0.1", "no-such-host.invalid", "192.0.2.1"}) {
    const auto start = std::chrono::steady_clock::now();
    test::Ranks ranks(1, [&](int) {
      LaunchEnvironment launched = test::rank_on_loopback(1, 2, port);
      launched.master_addr = host;
      return rendezvous_test::join(launched, 2);
    });
    const test::RankResult result = ranks.wait(0);
    INFO(result.text);
    CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
    CHECK(rendezvous_test::contains(result.text, std::string(host) + ":" + std::to_string(port)));
    CHECK(rendezvous_test::contains(result.text, "rank 1 of 2"));
    if (host == std::string("127.0.0.1"))
      CHECK(rendezvous_test::contains(result.text, ": Connection refused;"));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(15));
  }
}

TEST_CASE("a port in use is named, with how to choose another", "[rendezvous][dist]") {
  const test::LoopbackPort taken;
  test::Ranks ranks(
      2, [&](int rank) { return rendezvous_test::join(test::rank_on_loopback(rank, 2, taken.number()), 2); });
  const auto results = ranks.wait_all();
  INFO(results[0].text << "\n" << results[1].text);
  CHECK(results[0].exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(rendezvous_test::contains(results[0].text,
                                  "cannot listen on 127.0.0.1:" + std::to_string(taken.number())));
  CHECK(rendezvous_test::contains(results[0].text, "MASTER_PORT"));
  // Whoever listens there says nothing.
  CHECK(results[1].exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(rendezvous_test::contains(results[1].text, "cannot reach the job's meeting place"));
}

TEST_CASE("ranks that disagree on their number, and two of one number, are told apart",
          "[rendezvous][dist]") {
  const int port = test::free_port();
  test::Ranks ranks(3, [&](int process) {
    LaunchEnvironment launched = test::rank_on_loopback(process == 0 ? 0 : 1, 2, port);
    if (process == 1) {
      launched.rank = 2;
      launched.world_size = 3;
      ::usleep(300000);  // the job is as rank 0 says
    }
    if (process == 2) ::usleep(1200000);  // and has not begun when the stranger comes
    return rendezvous_test::join(launched, 20);
  });
  const auto results = ranks.wait_all();
  INFO(results[0].text << "\n" << results[1].text << "\n" << results[2].text);
  CHECK(results[0].text == "met");
  CHECK(results[2].text == "met");
  CHECK(results[1].exit_code == static_cast<int>(ExitCode::kUserError));
  CHECK(rendezvous_test::contains(results[1].text, "has 2 ranks, this process was started as one of 3"));
  CHECK(rendezvous_test::contains(results[1].text, "WORLD_SIZE"));

  const int second_port = test::free_port();
  test::Ranks twice(3, [&](int process) {
    if (process == 2) ::usleep(300000);
    const int rank = process == 2 ? 0 : 1;
    return rendezvous_test::join(test::rank_on_loopback(rank, 2, second_port), 20,
                                 std::chrono::seconds(rank == 0 ? 2 : 0));
  });
  const auto doubled = twice.wait_all();
  INFO(doubled[0].text << "\n" << doubled[1].text << "\n" << doubled[2].text);
  CHECK(doubled[2].text == "met");
  CHECK((doubled[0].text == "met") != (doubled[1].text == "met"));
  const std::string& refused = doubled[0].text == "met" ? doubled[1].text : doubled[0].text;
  CHECK(rendezvous_test::contains(refused, "as rank 1 before"));
}

}  // namespace osdn::dist
