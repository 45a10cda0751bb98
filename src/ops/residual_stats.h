// Sums behind q_geo and its companions (product metrics): per layer call, over its tokens x value heads,
// added up over layers, micro-batches and ranks before anything is divided or exponentiated
// (metrics/residual.h). From the op's own rounded k and beta. fp32 products, float64 sums in a fixed order.
#pragma once

#include "ops/sequences.h"
#include "tensor/fwd.h"

namespace osdn::ops {

/// Positions in a statistics tensor [kNumResidualTerms] of float64. All add up, except maxima and minima,
/// which are minus infinity and infinity where nothing was counted.
enum ResidualTerm : int64_t {
  kResidualCount = 0,    // tokens x value heads
  kResidualLogSum,       // sum of log max((1 - beta <d, k^2>)^2, 1e-30)
  kResidualLogSumPlain,  // the same with d = 1
  kResidualFloorCount,   // terms at the floor
  kResidualBetaSum,
  kResidualStrengthMax,  // max of beta <d, k^2>                                     (maximum)
  kResidualScaleCount,   // entries of d: tokens x value heads x K
  kResidualScaleSum,
  kResidualScaleMin,        //                                                          (minimum)
  kResidualScaleMax,        //                                                          (maximum)
  kResidualScaleAtBox,      // entries equal to a bound of the box
  kResidualRetentionCount,  // 0 without retention
  kResidualRetentionSum,
  kNumResidualTerms,
};

/// The statistics of a layer without preconditioner (d = 1). k [N, H, K] unnormalised when l2_normalize; beta
/// [N, HV]. Returns [kNumResidualTerms] float64 on the device of k. No gradient.
at::Tensor plain_residual_stats(const at::Tensor& k, const at::Tensor& beta, bool l2_normalize);

}  // namespace osdn::ops
