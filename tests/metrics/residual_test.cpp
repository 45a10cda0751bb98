#include "metrics/residual.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/catch.h"

namespace osdn::metrics::test {

namespace residual_test_detail {

// Sums of single tokens: log-ratio, beta, strength, entries of d (one at the box each), retention.
ResidualSums sums(double log_ratio, double beta, double strength, double d_low, double d_high) {
  ResidualSums made;
  made.count = 1;
  made.log_sum = log_ratio;
  made.log_sum_plain = 2 * log_ratio;
  made.floor_count = 0;
  made.beta_sum = beta;
  made.strength_max = strength;
  made.scale_count = 2;
  made.scale_sum = d_low + d_high;
  made.scale_min = d_low;
  made.scale_max = d_high;
  made.scale_at_box = 1;
  made.retention_count = 1;
  made.retention_sum = 0.5;
  return made;
}

}  // namespace residual_test_detail

TEST_CASE("fields are means, extremes and one exp of the mean log", "[residual]") {
  ResidualSums total = residual_test_detail::sums(std::log(0.25), 0.5, 0.75, 0.5, 1.0);
  total.add(residual_test_detail::sums(std::log(0.0625), 0.25, 0.5, 0.75, 1.5));
  total.floor_count = 1;
  const ResidualFields fields = finish(total);
  CHECK(fields.q_geo == Approx(0.125).epsilon(1e-14));  // the geometric mean, not (0.25 + 0.0625) / 2
  CHECK(fields.q_geo_plain == Approx(0.015625).epsilon(1e-14));
  CHECK(fields.q_floor_share == 0.5);
  CHECK(fields.beta_mean == 0.375);
  CHECK(fields.write_strength_max == 0.75);
  CHECK(fields.d_mean == 0.9375);
  CHECK(fields.d_min == 0.5);
  CHECK(fields.d_max == 1.5);
  CHECK(fields.d_at_box == 0.5);
  CHECK(fields.retention_mean == 0.5);
}

TEST_CASE("layers with many and with few tokens weigh by their tokens", "[residual]") {
  ResidualSums large;
  large.count = 9;
  large.log_sum = 9 * std::log(0.5);
  ResidualSums small;
  small.count = 1;
  small.log_sum = std::log(0.001);
  large.add(small);
  CHECK(finish(large).q_geo == Approx(std::exp((9 * std::log(0.5) + std::log(0.001)) / 10)).epsilon(1e-14));
}

TEST_CASE("adding does not depend on the order", "[residual]") {
  // Dyadic values add without rounding, so every order has to give the same bits.
  std::vector<ResidualSums> parts;
  for (int i = 1; i <= 4; ++i)
    parts.push_back(residual_test_detail::sums(-0.25 * i, 0.125 * i, 0.5 + 0.125 * (i % 3), 1.0 / (1 << i),
                                               1 + 0.25 * (i % 4)));
  parts.push_back(ResidualSums{});
  std::vector<int> order = {0, 1, 2, 3, 4};
  std::vector<double> first;
  do {
    ResidualSums total;
    for (const int i : order) total.add(parts[static_cast<size_t>(i)]);
    if (first.empty()) first = total.to_terms();
    CHECK(total.to_terms() == first);
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(finish(ResidualSums::from_terms(first)).d_min == 0.0625);
}

TEST_CASE("nothing to average is NaN, and empty sums change no extreme", "[residual]") {
  const ResidualFields empty = finish(ResidualSums{});
  CHECK(std::isnan(empty.q_geo));
  CHECK(std::isnan(empty.write_strength_max));
  CHECK(std::isnan(empty.d_min));
  CHECK(std::isnan(empty.retention_mean));

  // A layer without d reports infinities, a default-made sum zeros.
  ResidualSums plain;
  plain.scale_min = std::numeric_limits<double>::infinity();
  plain.scale_max = -std::numeric_limits<double>::infinity();
  plain.strength_max = -std::numeric_limits<double>::infinity();
  ResidualSums total = residual_test_detail::sums(-1, 0.5, 0.25, 0.5, 1.5);
  const std::vector<double> before = total.to_terms();
  total.add(plain);
  total.add(ResidualSums{});
  CHECK(total.to_terms() == before);
  plain.add(residual_test_detail::sums(-1, 0.5, 0.25, 0.5, 1.5));
  CHECK(plain.to_terms() == before);
}

TEST_CASE("terms keep their places", "[residual]") {
  std::vector<double> terms;
  for (int i = 0; i < 13; ++i) terms.push_back(i + 0.5);
  const ResidualSums sums = ResidualSums::from_terms(terms);
  CHECK(sums.count == 0.5);
  CHECK(sums.strength_max == 5.5);
  CHECK(sums.scale_min == 8.5);
  CHECK(sums.retention_sum == 12.5);
  CHECK(sums.to_terms() == terms);
}

}  // namespace osdn::metrics::test
