#include "ops/detail/simd_math.h"

#include <limits>

#include "tests/support/catch.h"

namespace osdn::test::simd_math_test {

namespace simd = ops::simd;

TEST_CASE("the vector exponential is good to 2e-7 over its range", "[simd_math]") {
  double worst = 0;
  for (double x = -87.0; x < 88.0; x += 0.00137) {
    const auto argument = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(argument));
    worst = std::max(worst, std::abs(static_cast<double>(simd::exp(argument)) - exact) / exact);
  }
  INFO("worst relative error " << worst);
  CHECK(worst < 2e-7);
  CHECK(simd::exp(0.0f) == 1.0f);
}

TEST_CASE("the vector exponential saturates and keeps NaN", "[simd_math]") {
  CHECK(simd::exp(-1e30f) < 1.3e-38f);
  CHECK(simd::exp(-1e30f) >= 0.0f);
  CHECK(simd::exp(1e30f) > 1e38f);
  CHECK(std::isfinite(simd::exp(1e30f)));
  CHECK(std::isnan(simd::exp(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(simd::silu(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("the slope of silu is its derivative", "[simd_math]") {
  for (double x = -30; x < 30; x += 0.37) {
    const double difference = (simd::silu(x + 1e-6) - simd::silu(x - 1e-6)) / 2e-6;
    CHECK(simd::silu_slope(x) == Approx(difference).margin(1e-8));
  }
}

TEST_CASE("the sum in lanes covers every length", "[simd_math]") {
  for (int64_t n = 0; n < 70; ++n) {
    const int64_t twice = n * (n + 1);
    CHECK(simd::sum<double>(n, [](int64_t i) { return static_cast<double>(i + 1); }) ==
          static_cast<double>(twice) / 2);
  }
}

}  // namespace osdn::test::simd_math_test
