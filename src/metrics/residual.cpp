#include "metrics/residual.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace osdn::metrics {
namespace {

// Positions of ops::ResidualTerm.
constexpr std::array<double ResidualSums::*, 13> kTermOrder = {
    &ResidualSums::count,        &ResidualSums::log_sum,      &ResidualSums::log_sum_plain,
    &ResidualSums::floor_count,  &ResidualSums::beta_sum,     &ResidualSums::strength_max,
    &ResidualSums::scale_count,  &ResidualSums::scale_sum,    &ResidualSums::scale_min,
    &ResidualSums::scale_max,    &ResidualSums::scale_at_box, &ResidualSums::retention_count,
    &ResidualSums::retention_sum};

double ratio(double sum, double count) {
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

ResidualSums ResidualSums::from_terms(const std::vector<double>& terms) {
  OSDN_ASSERT(terms.size() == kTermOrder.size(), "expected {} terms, got {}", kTermOrder.size(),
              terms.size());
  ResidualSums sums;
  for (size_t i = 0; i < kTermOrder.size(); ++i) sums.*kTermOrder[i] = terms[i];
  return sums;
}

std::vector<double> ResidualSums::to_terms() const {
  std::vector<double> terms;
  for (const auto member : kTermOrder) terms.push_back(this->*member);
  return terms;
}

void ResidualSums::add(const ResidualSums& other) {
  // Extremes of nothing are no values: what stands there (0, or an infinity) must not enter.
  if (other.count > 0)
    strength_max = count > 0 ? std::max(strength_max, other.strength_max) : other.strength_max;
  if (other.scale_count > 0) {
    scale_min = scale_count > 0 ? std::min(scale_min, other.scale_min) : other.scale_min;
    scale_max = scale_count > 0 ? std::max(scale_max, other.scale_max) : other.scale_max;
  }
  count += other.count;
  log_sum += other.log_sum;
  log_sum_plain += other.log_sum_plain;
  floor_count += other.floor_count;
  beta_sum += other.beta_sum;
  scale_count += other.scale_count;
  scale_sum += other.scale_sum;
  scale_at_box += other.scale_at_box;
  retention_count += other.retention_count;
  retention_sum += other.retention_sum;
}

ResidualFields finish(const ResidualSums& sums) {
  constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
  ResidualFields fields;
  fields.q_geo = std::exp(ratio(sums.log_sum, sums.count));
  fields.q_geo_plain = std::exp(ratio(sums.log_sum_plain, sums.count));
  fields.q_floor_share = ratio(sums.floor_count, sums.count);
  fields.beta_mean = ratio(sums.beta_sum, sums.count);
  fields.write_strength_max = sums.count > 0 ? sums.strength_max : kNothing;
  fields.d_mean = ratio(sums.scale_sum, sums.scale_count);
  fields.d_min = sums.scale_count > 0 ? sums.scale_min : kNothing;
  fields.d_max = sums.scale_count > 0 ? sums.scale_max : kNothing;
  fields.d_at_box = ratio(sums.scale_at_box, sums.scale_count);
  fields.retention_mean = ratio(sums.retention_sum, sums.retention_count);
  return fields;
}

}  // namespace osdn::metrics
