// RMS normalisation over the last dimension, plain, gated, and fused with the residual sum
// (docs/ops/rms_norm.md). Statistics, weight and gate in fp32 (float64 for float64), one rounding at the end.
#pragma once

#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::ops {

enum class GateActivation { kSwish, kSigmoid };

/// y = x / sqrt(mean(x^2) + eps) * w.  x [..., D], weight [D]. Differentiable in x and weight.
at::Tensor rms_norm(const at::Tensor& x, const Weight& weight, double eps);
at::Tensor rms_norm_ref(const at::Tensor& x, const at::Tensor& weight, double eps);

/// y = rms_norm(x, w) * act(gate).  gate has the shape of x. Differentiable in x, gate and weight.
at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& gate, const Weight& weight, double eps,
                          GateActivation activation);
at::Tensor gated_rms_norm_ref(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                              double eps, GateActivation activation);

struct AddRmsNormOutput {
  at::Tensor sum;         // [..., D] branch + residual, rounded to their dtype: the new residual
  at::Tensor normalized;  // [..., D] rms_norm of the UNROUNDED fp32 sum
};

/// The post-mixer step of a block: normalises the fp32 sum before it is rounded. Differentiable in all three.
AddRmsNormOutput add_rms_norm(const at::Tensor& branch, const at::Tensor& residual, const Weight& weight,
                              double eps);
AddRmsNormOutput add_rms_norm_ref(const at::Tensor& branch, const at::Tensor& residual,
                                  const at::Tensor& weight, double eps);

/// The pre-mixer step of a block: the residual stream, plus the branch of the block before where it is
/// defined, and the norm of that sum AFTER it was rounded: what adding first and rms_norm() then give. Both
/// outputs' gradients are added up in fp32. Differentiable in all three.
AddRmsNormOutput carry_rms_norm(const at::Tensor& branch, const at::Tensor& residual, const Weight& weight,
                                double eps);
AddRmsNormOutput carry_rms_norm_ref(const at::Tensor& branch, const at::Tensor& residual,
                                    const at::Tensor& weight, double eps);

}  // namespace osdn::ops
