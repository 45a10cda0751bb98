// The implementations behind ops/rms_norm.h: loops for float32 and float64 on CPU, kernels for bf16 and
// float32 on CUDA, ATen for everything else. Tests hold one against the other.
#pragma once

#include "ops/rms_norm.h"
#include "tensor/fwd.h"

namespace osdn::ops::rms_norm_detail {

// R: rows; D: width. All tensors contiguous.
struct Inputs {
  at::Tensor x;            // [R, D]
  at::Tensor residual;     // [R, D] or undefined; added to x before the norm
  bool round_sum = false;  // the norm of the sum as rounded to the dtype of x
  at::Tensor gate;         // [R, D] or undefined
  at::Tensor weight;       // [D] accumulation dtype
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
  at::Tensor dweight;  // [D] accumulation dtype; undefined where it went to a sink already
};

/// float32 and float64 on CPU.
Outputs forward_cpu(const Inputs& inputs);
/// dy [R, D]; dsum [R, D] or undefined: the gradient that reaches x + residual from elsewhere.
Gradients backward_cpu(const Inputs& inputs, const at::Tensor& rstd, const at::Tensor& dy,
                       const at::Tensor& dsum);

/// Rows the kernels take: bf16 or float32 on CUDA, of a width that divides into 16 bytes.
bool on_kernel_path(const at::Tensor& rows);
Outputs forward_kernel(const Inputs& inputs);
/// inputs.x is what was normalised, without a residual. The weight's gradient is added to `sink`, [D] fp32;
/// where there is none it is returned.
Gradients backward_kernel(const Inputs& inputs, const at::Tensor& rstd, const at::Tensor& dy,
                          const at::Tensor& dsum, const at::Tensor& sink);

Outputs forward_aten(const Inputs& inputs);
Gradients backward_aten(const Inputs& inputs, const at::Tensor& rstd, const at::Tensor& dy,
                        const at::Tensor& dsum);

}  // namespace osdn::ops::rms_norm_detail
