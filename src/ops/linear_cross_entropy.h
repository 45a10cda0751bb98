// Output head and next-token loss in one op: full fp32 logits never exist (docs/ops/linear_cross_entropy.md).
// By chunks of rows, whose logits backward computes again; the CUDA kernels keep their gradient instead.
#pragma once

#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::ops {

inline constexpr int64_t kIgnoreTarget = -100;

/// x [N, D]; weight [V, D]; targets [N] int64 in [0, V) or kIgnoreTarget.
/// Returns the SUM of the target losses as a scalar, fp32 (float64 for float64). The caller divides by the
/// number of targets of the global batch. Differentiable in x and weight. Throws UserError for a target
/// outside [0, V) on CPU; on CUDA, where looking at the targets would stall the device, the loss is NaN.
at::Tensor linear_cross_entropy(const at::Tensor& x, const Weight& weight, const at::Tensor& targets);

/// Loss of every row without reduction and without gradient: [N] fp32, 0 for ignored targets. For evaluation.
at::Tensor linear_cross_entropy_rows(const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& targets);

/// Full logits, log-softmax: differentiable by autograd; sum of the target losses.
at::Tensor linear_cross_entropy_ref(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets);

}  // namespace osdn::ops
