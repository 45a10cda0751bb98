// The two implementations of the softmax steps of ops/linear_cross_entropy.h: loops for float32 and float64
// on CPU, ATen for everything else. Tests hold one against the other.
#pragma once

#include "tensor/fwd.h"

namespace osdn::ops::linear_cross_entropy_detail {

// C: rows of a chunk; V: vocabulary. Accumulation dtype: float64 for float64, else float32.

struct RowLosses {
  at::Tensor log_sum_exp;  // [C] accumulation dtype
  at::Tensor loss;         // [C] accumulation dtype, 0 for ignored targets
};

/// logits [C, V] dtype of x; targets [C] int64.
RowLosses row_losses_cpu(const at::Tensor& logits, const at::Tensor& targets);
RowLosses row_losses_aten(const at::Tensor& logits, const at::Tensor& targets);

/// scale * (softmax - one_hot(target)) in the dtype of the logits, 0 for ignored targets. May overwrite
/// `logits`. scale: scalar tensor, accumulation dtype.
at::Tensor logit_gradient_cpu(const at::Tensor& logits, const at::Tensor& targets,
                              const at::Tensor& log_sum_exp, const at::Tensor& scale);
at::Tensor logit_gradient_aten(const at::Tensor& logits, const at::Tensor& targets,
                               const at::Tensor& log_sum_exp, const at::Tensor& scale);

}  // namespace osdn::ops::linear_cross_entropy_detail
