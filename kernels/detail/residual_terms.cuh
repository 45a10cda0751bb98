// Residual statistics of the tokens that a lane saw, and their sum over a warp (docs/ops/residual_stats.md).
#pragma once

#include "kernels/common/warp.cuh"
#include "kernels/residual_stats.h"

namespace osdn::kernels {

/// `term` of two parts together.
__device__ inline double merge_residual_term(int term, double a, double b) {
  constexpr int kStrengthMax = 5;
  constexpr int kScaleMin = 8;
  constexpr int kScaleMax = 9;
  return term == kStrengthMax || term == kScaleMax ? fmax(a, b) : term == kScaleMin ? fmin(a, b) : a + b;
}
/// What merges with anything to that.
__device__ inline double neutral_residual_term(int term) {
  const double merged = merge_residual_term(term, -INFINITY, INFINITY);
  return merged != merged ? 0.0 : -merged;
}

/// fp32 products, logarithms and sums of at most 2,048 terms.
struct LaneResiduals {
  int count = 0;
  float log_sum = 0;
  float log_sum_plain = 0;
  int floor_count = 0;
  float beta_sum = 0;
  float strength_max = -INFINITY;
  float scale_sum = 0;
  float scale_min = INFINITY;
  float scale_max = -INFINITY;
  int scale_at_box = 0;
  float retention_sum = 0;

  __device__ static float log_ratio(float strength) {
    return logf(fmaxf((1.0f - strength) * (1.0f - strength), kResidualFloor));
  }
  /// strength: beta <d, x>; plain_strength: beta <1, x>
  __device__ void add_write(float strength, float plain_strength, float beta) {
    ++count;
    log_sum += log_ratio(strength);
    log_sum_plain += log_ratio(plain_strength);
    floor_count += (1.0f - strength) * (1.0f - strength) <= kResidualFloor ? 1 : 0;
    beta_sum += beta;
    strength_max = fmaxf(strength_max, strength);
  }
  /// Adds the whole warp's terms to `terms`, which lane 0 holds in shared memory. A write has `scales`
  /// entries of d and `retentions` of the retention.
  __device__ void merge_into(double (&terms)[kResidualTerms], int scales, int retentions) const {
    double all[kResidualTerms] = {static_cast<double>(count),
                                  log_sum,
                                  log_sum_plain,
                                  static_cast<double>(floor_count),
                                  beta_sum,
                                  strength_max,
                                  static_cast<double>(count) * scales,
                                  scale_sum,
                                  scale_min,
                                  scale_max,
                                  static_cast<double>(scale_at_box),
                                  static_cast<double>(count) * retentions,
                                  retention_sum};
#pragma unroll 1
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int term = 0; term < kResidualTerms; ++term)
        all[term] = merge_residual_term(term, all[term], __shfl_xor_sync(0xffffffffu, all[term], distance));
    }
    if (threadIdx.x % kWarpSize != 0) return;
#pragma unroll
    for (int term = 0; term < kResidualTerms; ++term)
      terms[term] = merge_residual_term(term, terms[term], all[term]);
  }
};

}  // namespace osdn::kernels
