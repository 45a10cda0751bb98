#include "data/sample_order.h"

#include <cstdint>
#include <vector>

#include "tests/support/catch.h"

namespace osdn::data {

TEST_CASE("A sample order is a bijection for every size", "[sample_order]") {
  const int64_t n = GENERATE(1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4097, 65536, 100003);
  CAPTURE(n);
  const SampleOrder order(7, 3, n);
  std::vector<int> seen(static_cast<size_t>(n), 0);
  bool inside = true;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t place = order(i);
    inside = inside && place >= 0 && place < n;
    if (inside) ++seen[static_cast<size_t>(place)];
  }
  REQUIRE(inside);
  int64_t once = 0;
  for (const int count : seen) once += count == 1 ? 1 : 0;
  CHECK(once == n);
}

TEST_CASE("Sample orders differ by seed and by epoch and look unordered", "[sample_order]") {
  constexpr int64_t kSize = 1000;
  const SampleOrder base(1, 0, kSize);
  const SampleOrder other_seed(2, 0, kSize);
  const SampleOrder other_epoch(1, 1, kSize);
  int64_t fixed = 0;
  int64_t same_seed = 0;
  int64_t same_epoch = 0;
  int64_t neighbours = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    fixed += base(i) == i ? 1 : 0;
    same_seed += base(i) == other_seed(i) ? 1 : 0;
    same_epoch += base(i) == other_epoch(i) ? 1 : 0;
    if (i > 0) neighbours += base(i) == base(i - 1) + 1 ? 1 : 0;
  }
  // Each of these counts has mean 1 for random permutations; 10 or more happens once in 10^7.
  CHECK(fixed < 10);
  CHECK(same_seed < 10);
  CHECK(same_epoch < 10);
  CHECK(neighbours < 10);
}

TEST_CASE("A sample order takes sizes beyond 32 bits", "[sample_order]") {
  constexpr int64_t kSize = (int64_t{1} << 40) + 12345;
  const SampleOrder order(5, 9, kSize);
  bool inside = true;
  bool large = false;
  for (int64_t i = kSize - 1000; i < kSize; ++i) {
    inside = inside && order(i) >= 0 && order(i) < kSize;
    large = large || order(i) > (int64_t{1} << 33);
  }
  CHECK(inside);
  CHECK(large);
}

TEST_CASE("A sample order is the same on every machine", "[sample_order]") {
  const SampleOrder order(42, 0, 10);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < 10; ++i) places.push_back(order(i));
  CHECK(places == std::vector<int64_t>{0, 1, 9, 3, 5, 4, 8, 6, 7, 2});
  CHECK(SampleOrder(42, 1, 1'000'000)(123456) == 354996);
  CHECK(mix64(0) == 0xE220A8397B1DCDAFULL);  // the first output of splitmix64 from state 0
}

}  // namespace osdn::data
