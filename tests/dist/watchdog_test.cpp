#include "dist/detail/watchdog.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

namespace osdn::dist::detail {
namespace watchdog_test {

using std::chrono::milliseconds;

std::string wait_for_failure(const Watchdog& watchdog) {
  for (int i = 0; i < 2000; ++i) {
    if (const auto failure = watchdog.failure()) return *failure;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return "no failure within 10 s";
}

}  // namespace watchdog_test

TEST_CASE("work that ends in time is no failure, however much of it there is", "[watchdog]") {
  std::atomic<bool> ended_waiting{false};
  Watchdog watchdog(
      {.timeout = watchdog_test::milliseconds(100), .end_waiting = [&] { ended_waiting = true; }});
  for (int i = 0; i < 40; ++i) {
    const auto done = std::chrono::steady_clock::now() + watchdog_test::milliseconds(10);
    watchdog.watch({.what = "work", .finished = [done] { return std::chrono::steady_clock::now() > done; }});
    std::this_thread::sleep_for(watchdog_test::milliseconds(10));
  }
  CHECK_FALSE(watchdog.failure().has_value());
  CHECK_FALSE(ended_waiting);
}

TEST_CASE("work that does not end is named, and whoever waits for it is let go", "[watchdog]") {
  std::atomic<bool> ended_waiting{false};
  Watchdog watchdog(
      {.timeout = watchdog_test::milliseconds(100), .end_waiting = [&] { ended_waiting = true; }});
  watchdog.watch({.what = "the first", .finished = [] { return true; }});
  watchdog.watch(
      {.what = "rank 1 of 2, step 5: all_reduce_sum of gradients", .finished = [] { return false; }});
  const std::string failure = watchdog_test::wait_for_failure(watchdog);
  INFO(failure);
  CHECK(failure.find("rank 1 of 2, step 5: all_reduce_sum of gradients: not finished within 0.1 s") == 0);
  for (int i = 0; i < 400 && !ended_waiting; ++i) std::this_thread::sleep_for(watchdog_test::milliseconds(5));
  CHECK(ended_waiting);
}

TEST_CASE("a task may have a shorter time than the others", "[watchdog]") {
  Watchdog watchdog({.timeout = std::chrono::seconds(60), .end_waiting = [] {}});
  watchdog.watch(
      {.what = "first sums", .finished = [] { return false; }, .timeout = watchdog_test::milliseconds(200)});
  CHECK(watchdog_test::wait_for_failure(watchdog).find("first sums: not finished within 0.2 s") == 0);
}

TEST_CASE("what a task holds is destroyed by the thread that gives tasks, not by the one that watches",
          "[watchdog]") {
  struct Held {
    std::thread::id* destroyed_by;
    explicit Held(std::thread::id* by) : destroyed_by(by) {}
    ~Held() { *destroyed_by = std::this_thread::get_id(); }
  };
  std::thread::id destroyed_by;
  std::atomic<int> asked{0};
  Watchdog watchdog({.timeout = watchdog_test::milliseconds(100), .end_waiting = [] {}});
  watchdog.watch(
      {.what = "work", .finished = [held = std::make_shared<Held>(&destroyed_by)] { return true; }});
  watchdog.watch({.what = "work", .finished = [&] {
                    ++asked;
                    return true;
                  }});
  for (int i = 0; i < 2000 && asked == 0; ++i) std::this_thread::sleep_for(watchdog_test::milliseconds(5));
  CHECK(destroyed_by == std::thread::id());
  watchdog.watch({.what = "work", .finished = [] { return true; }});
  CHECK(destroyed_by == std::this_thread::get_id());
}

TEST_CASE("work of several parts says which part is not done", "[watchdog]") {
  Watchdog watchdog({.timeout = watchdog_test::milliseconds(100), .end_waiting = [] {}});
  watchdog.watch({.what = "rank 0 of 2, step 7",
                  .finished = [] { return false; },
                  .where = [] { return std::string("reduce_scatter of gradients"); }});
  CHECK(watchdog_test::wait_for_failure(watchdog).find(
            "rank 0 of 2, step 7: reduce_scatter of gradients: not finished within 0.1 s") == 0);
}

TEST_CASE("work that fails is named at once, with its reason", "[watchdog]") {
  Watchdog watchdog({.timeout = watchdog_test::milliseconds(20000), .end_waiting = [] {}});
  const auto start = std::chrono::steady_clock::now();
  watchdog.watch(
      {.what = "a sum", .finished = []() -> bool { throw std::runtime_error("the link is down"); }});
  CHECK(watchdog_test::wait_for_failure(watchdog) == "a sum: the link is down");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE(
    "what is finished stays so when all that is not becomes vain, which is named at once with the reason",
    "[watchdog]") {
  std::atomic<bool> broken{false};
  std::atomic<bool> ended_waiting{false};
  Watchdog watchdog({.timeout = watchdog_test::milliseconds(20000),
                     .end_waiting = [&] { ended_waiting = true; },
                     .broken = [&] { return std::string(broken ? "rank 1 has failed" : ""); }});
  const auto start = std::chrono::steady_clock::now();
  watchdog.watch({.what = "the first", .finished = [&] { return broken.load(); }});
  watchdog.watch({.what = "rank 0 of 2, step 7",
                  .finished = [] { return false; },
                  .where = [] { return std::string("reduce_scatter of gradients"); }});
  std::this_thread::sleep_for(watchdog_test::milliseconds(100));
  CHECK_FALSE(watchdog.failure().has_value());
  broken = true;
  CHECK(watchdog_test::wait_for_failure(watchdog) ==
        "rank 0 of 2, step 7: reduce_scatter of gradients: rank 1 has failed");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  for (int i = 0; i < 400 && !ended_waiting; ++i) std::this_thread::sleep_for(watchdog_test::milliseconds(5));
  CHECK(ended_waiting);
}

TEST_CASE(
    "a process that stays in its wait after a failure is ended with exit code 3, and so is one whose "
    "end of waiting does not end",
    "[watchdog][dist]") {
  const bool blocks = GENERATE(false, true);
  CAPTURE(blocks);
  test::Ranks stuck(1, [blocks](int) -> std::string {
    Watchdog watchdog({.timeout = watchdog_test::milliseconds(50),
                       .end_waiting =
                           [blocks] {
                             if (blocks) std::this_thread::sleep_for(std::chrono::seconds(60));
                           },
                       .grace = watchdog_test::milliseconds(100)});
    watchdog.watch({.what = "work", .finished = [] { return false; }});
    if (blocks)
      watchdog_test::wait_for_failure(watchdog);
    else
      std::this_thread::sleep_for(std::chrono::seconds(60));
    return "left alone";
  });
  const test::RankResult result = stuck.wait(0);
  CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(result.text.empty());
}

}  // namespace osdn::dist::detail
