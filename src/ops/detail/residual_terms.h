// The residual statistics of one token and head, and how partial statistics merge (ops/residual_stats.h).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/residual_stats.h"
#include "tensor/fwd.h"

namespace osdn::ops {

/// Smallest residual ratio that is counted, so that an exact write does not send the mean logarithm to minus
/// infinity.
inline constexpr double kResidualFloor = 1e-30;

/// Terms of part of the tokens. Parts are merged in a fixed order.
class ResidualTerms {
 public:
  ResidualTerms() {
    terms_.fill(0);
    terms_[kResidualStrengthMax] = terms_[kResidualScaleMax] = -std::numeric_limits<double>::infinity();
    terms_[kResidualScaleMin] = std::numeric_limits<double>::infinity();
  }

  /// strength = beta <d, k^2>; plain_strength = beta <1, k^2>
  void add_write(double strength, double plain_strength, double beta) {
    const double ratio = (1 - strength) * (1 - strength);
    const double plain_ratio = (1 - plain_strength) * (1 - plain_strength);
    terms_[kResidualCount] += 1;
    terms_[kResidualLogSum] += std::log(std::max(ratio, kResidualFloor));
    terms_[kResidualLogSumPlain] += std::log(std::max(plain_ratio, kResidualFloor));
    terms_[kResidualFloorCount] += ratio <= kResidualFloor ? 1 : 0;
    terms_[kResidualBetaSum] += beta;
    terms_[kResidualStrengthMax] = std::max(terms_[kResidualStrengthMax], strength);
  }
  void add_scale(double count, double sum, double smallest, double largest, double at_box) {
    terms_[kResidualScaleCount] += count;
    terms_[kResidualScaleSum] += sum;
    terms_[kResidualScaleMin] = std::min(terms_[kResidualScaleMin], smallest);
    terms_[kResidualScaleMax] = std::max(terms_[kResidualScaleMax], largest);
    terms_[kResidualScaleAtBox] += at_box;
  }
  void add_retention(double count, double sum) {
    terms_[kResidualRetentionCount] += count;
    terms_[kResidualRetentionSum] += sum;
  }
  void merge(const ResidualTerms& other) {
    for (size_t i = 0; i < terms_.size(); ++i) {
      if (i == kResidualStrengthMax || i == kResidualScaleMax)
        terms_[i] = std::max(terms_[i], other.terms_[i]);
      else if (i == kResidualScaleMin)
        terms_[i] = std::min(terms_[i], other.terms_[i]);
      else
        terms_[i] += other.terms_[i];
    }
  }
  /// [kNumResidualTerms] float64 on the CPU.
  at::Tensor to_tensor() const;

 private:
  std::array<double, kNumResidualTerms> terms_;
};

/// Of parts [P, kNumResidualTerms] float64 that kernels made, in their order, on their device.
at::Tensor merge_residual_parts(const at::Tensor& parts);

/// plain_residual_stats by a CUDA kernel, normalisation included; k on the kernel path of the scan.
at::Tensor plain_residual_kernel(const at::Tensor& k, const at::Tensor& beta, bool l2_normalize);

/// The same by ATen reductions, for tensors on a device that the kernels do not take. strength,
/// plain_strength, beta [N, HV]; scale [N, HV, K] or undefined; retention [N, HV], [N, HV, K] or undefined.
/// Returns [kNumResidualTerms] float64 on their device.
at::Tensor residual_terms(const at::Tensor& strength, const at::Tensor& plain_strength,
                          const at::Tensor& beta, const at::Tensor& scale, double box_min, double box_max,
                          const at::Tensor& retention);

}  // namespace osdn::ops
