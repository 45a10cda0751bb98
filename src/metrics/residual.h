// Turns the summed residual terms (ops/residual_stats.h, as plain doubles) into the published fields.
#pragma once

#include <cstdint>
#include <vector>

namespace osdn::metrics {

/// Sums of one delta layer, or of several added up. Order and meaning as ops::ResidualTerm.
struct ResidualSums {
  double count = 0;
  double log_sum = 0;
  double log_sum_plain = 0;
  double floor_count = 0;
  double beta_sum = 0;
  double strength_max = 0;
  double scale_count = 0;
  double scale_sum = 0;
  double scale_min = 0;
  double scale_max = 0;
  double scale_at_box = 0;
  double retention_count = 0;
  double retention_sum = 0;

  /// From ops::kNumResidualTerms values.
  static ResidualSums from_terms(const std::vector<double>& terms);
  std::vector<double> to_terms() const;
  void add(const ResidualSums& other);
};

/// The fields of metrics.jsonl. NaN where there is nothing to average (retention without a gate).
struct ResidualFields {
  double q_geo = 0;
  double q_geo_plain = 0;
  double q_floor_share = 0;
  double beta_mean = 0;
  double write_strength_max = 0;
  double d_mean = 0;
  double d_min = 0;
  double d_max = 0;
  double d_at_box = 0;
  double retention_mean = 0;
};

ResidualFields finish(const ResidualSums& sums);

}  // namespace osdn::metrics
