// The implementations of the softmax steps of ops/linear_cross_entropy.h: loops for float32 and float64 on
// CPU, kernels for bf16 and float32 on CUDA, ATen for everything else. Tests hold one against the other.
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

bool on_kernel_path(const at::Tensor& x);

/// x W^T for the rows of x: [C, V], the rows padded to whole vectors in memory.
at::Tensor padded_logits(const at::Tensor& x, const at::Tensor& weight);

/// Of logits as padded_logits() gives them. Writes the losses into `loss` [C] fp32 unless that is undefined;
/// with `gradient`, replaces the logits by scale * (softmax - one_hot(target)), 0 for ignored targets. scale:
/// one fp32 number on the device, undefined: 1.
void softmax_kernel(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& loss,
                    bool gradient, const at::Tensor& scale);

}  // namespace osdn::ops::linear_cross_entropy_detail
