// The two implementations behind ops/rms_norm.h: loops for float32 and float64 on CPU, ATen for everything
// else. Tests hold one against the other.
#pragma once

#include "ops/rms_norm.h"
#include "tensor/fwd.h"

namespace osdn::ops::rms_norm_detail {

// R: rows; D: width. All tensors contiguous.
struct Inputs {
  at::Tensor x;         // [R, D]
  at::Tensor residual;  // [R, D] or undefined; added to x before the norm
  at::Tensor gate;      // [R, D] or undefined
  at::Tensor weight;    // [D] accumulation dtype
  double eps = 0;
  GateActivation activation = GateActivation::kSwish;
};

struct Outputs {
  at::Tensor y;     // [R, D] dtype of x
  at::Tensor sum;   // [R, D] dtype of x, only with a residual
  at::Tensor rstd;  // [R] accumulation dtype
};

struct Gradients {
  at::Tensor dx;       // [R, D] of x and of the residual
  at::Tensor dgate;    // [R, D] only with a gate
  at::Tensor dweight;  // [D] accumulation dtype
};

/// float32 and float64 on CPU.
Outputs forward_cpu(const Inputs& inputs);
/// dy [R, D]; dsum [R, D] or undefined: the gradient that reaches x + residual from elsewhere.
Gradients backward_cpu(const Inputs& inputs, const at::Tensor& rstd, const at::Tensor& dy,
                       const at::Tensor& dsum);

Outputs forward_aten(const Inputs& inputs);
Gradients backward_aten(const Inputs& inputs, const at::Tensor& rstd, const at::Tensor& dy,
                        const at::Tensor& dsum);

}  // namespace osdn::ops::rms_norm_detail
