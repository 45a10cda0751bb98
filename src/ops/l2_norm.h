// L2 normalisation over the last dimension: y = x / sqrt(sum(x^2) + 1e-6), the eps inside the root, fp32
// inside and rounded to the input dtype at the end (docs/ops/l2_norm.md).
#pragma once

#include "tensor/fwd.h"

namespace osdn::ops {

inline constexpr double kL2NormEps = 1e-6;

/// x [..., D]. Differentiable. The zero vector gives 0 with a finite gradient.
at::Tensor l2_norm(const at::Tensor& x);
at::Tensor l2_norm_ref(const at::Tensor& x);

/// The pieces for ops that normalise inside: y and rstd [..., 1] (fp32; float64 for float64), no autograd.
struct L2NormForward {
  at::Tensor y;
  at::Tensor rstd;
};
L2NormForward l2_norm_forward(const at::Tensor& x);
/// dx from dy, with y and rstd of the forward, in the dtype of y. No autograd.
at::Tensor l2_norm_backward(const at::Tensor& dy, const at::Tensor& y, const at::Tensor& rstd);

}  // namespace osdn::ops
