#include "data/detail/ordered_pipeline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

#include "data/sample_order.h"
#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace ordered_pipeline_test {

using Pipeline = detail::OrderedPipeline<int64_t, int64_t>;

Pipeline::Options options(int64_t workers, int64_t limit_bytes = 8) {
  return {.workers = workers, .limit_bytes = limit_bytes, .size_bytes = [](const int64_t&) {
            return int64_t{1};
          }};
}

void work_a_little(int64_t item) {
  std::this_thread::sleep_for(std::chrono::microseconds(mix64(item) % 300));
}

}  // namespace ordered_pipeline_test

TEST_CASE("Results come in the order of the items, with any number of workers", "[ordered_pipeline]") {
  for (const int64_t workers : {1, 2, 3, 7}) {
    CAPTURE(workers);
    ordered_pipeline_test::Pipeline pipeline(ordered_pipeline_test::options(workers), [](int64_t&& item) {
      ordered_pipeline_test::work_a_little(item);
      return item * item;
    });
    int64_t produced = 0;
    std::vector<int64_t> results;
    pipeline.run(
        [&](int64_t* item) {
          *item = produced;
          return produced++ < 100;
        },
        [&](int64_t&& result) { results.push_back(result); });
    REQUIRE(results.size() == 100);
    bool ordered = true;
    for (int64_t i = 0; i < 100; ++i) ordered = ordered && results[static_cast<size_t>(i)] == i * i;
    CHECK(ordered);
  }
}

TEST_CASE("What is under way is bounded by its size, not by its number", "[ordered_pipeline]") {
  std::atomic<int64_t> under_way{0};
  int64_t most = 0;
  detail::OrderedPipeline<int64_t, int64_t> pipeline(
      {.workers = 3, .limit_bytes = 1000, .size_bytes = [](const int64_t& size) { return size; }},
      [&](int64_t&& size) { return size; });
  const std::vector<int64_t> sizes = {10, 10, 5000, 10, 10, 400, 400, 400, 400, 10, 7000, 7000, 10};
  size_t position = 0;
  size_t consumed = 0;
  pipeline.run(
      [&](int64_t* size) {
        if (position == sizes.size()) return false;
        // Less than the limit is under way whenever another one is begun.
        most = std::max(most, under_way.load());
        *size = sizes[position++];
        under_way += *size;
        return true;
      },
      [&](int64_t&& size) {
        CHECK(size == sizes[consumed++]);
        under_way -= size;
      });
  CHECK(consumed == sizes.size());
  CHECK(most < 1000);
  CHECK(most >= 400);
}

TEST_CASE("The first failure in input order is thrown, and what came before it is consumed",
          "[ordered_pipeline]") {
  for (const std::string place : {"producing", "working", "consuming"}) {
    CAPTURE(place);
    ordered_pipeline_test::Pipeline pipeline(ordered_pipeline_test::options(3), [&](int64_t&& item) {
      ordered_pipeline_test::work_a_little(item);
      if (place == "working" && item >= 20) throw std::runtime_error(std::to_string(item));
      return item;
    });
    int64_t produced = 0;
    int64_t consumed = 0;
    std::string failure;
    try {
      pipeline.run(
          [&](int64_t* item) {
            if (place == "producing" && produced == 20) throw std::runtime_error("20");
            *item = produced++;
            return produced < 100;
          },
          [&](int64_t&& result) {
            if (place == "consuming" && result == 20) throw std::runtime_error("20");
            CHECK(result == consumed++);
          });
    } catch (const std::runtime_error& caught) {
      failure = caught.what();
    }
    CHECK(failure == "20");
    CHECK(consumed == 20);
  }
}

TEST_CASE("Jobs that split themselves all end, also when every worker does", "[ordered_pipeline]") {
  ordered_pipeline_test::Pipeline* self = nullptr;
  ordered_pipeline_test::Pipeline pipeline(ordered_pipeline_test::options(3), [&](int64_t&& item) {
    std::atomic<int64_t> sum{0};
    self->pool().for_each(50, [&](int64_t index) {
      ordered_pipeline_test::work_a_little(index);
      sum += index;
    });
    self->pool().for_each(0, [&](int64_t) { sum = -1; });
    return sum + item;
  });
  self = &pipeline;
  int64_t produced = 0;
  int64_t consumed = 0;
  pipeline.run(
      [&](int64_t* item) {
        *item = produced;
        return produced++ < 20;
      },
      [&](int64_t&& result) { CHECK(result == 50 * 49 / 2 + consumed++); });
  CHECK(consumed == 20);
}

TEST_CASE("Idle workers help with the parts of one job", "[ordered_pipeline]") {
  detail::WorkerPool pool(3);
  // Each of the four parts waits for the others: they must run at the same time.
  std::atomic<int64_t> arrived{0};
  pool.for_each(4, [&](int64_t) {
    ++arrived;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (arrived < 4 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  });
  CHECK(arrived == 4);
  CHECK_THROWS_AS(pool.for_each(10,
                                [](int64_t index) {
                                  if (index == 5) throw std::runtime_error("five");
                                }),
                  std::runtime_error);
}

}  // namespace osdn::data
