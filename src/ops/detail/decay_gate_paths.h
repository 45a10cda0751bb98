// The implementations behind ops/decay_gate.h: loops for float32 and float64 on CPU, kernels for a decay per
// channel on CUDA, ATen for everything else. Tests hold one against the other.
#pragma once

#include <optional>

#include "tensor/fwd.h"

namespace osdn::ops::decay_gate_detail {

// N: tokens; HV: value heads; K: channels, 1 where a head has one decay.

struct Inputs {
  at::Tensor y;                       // [N, HV, K] a + b, accumulation dtype
  at::Tensor rate;                    // [HV] exp(A), accumulation dtype
  std::optional<double> lower_bound;  // c
};

struct Gradients {
  at::Tensor dy;     // [N, HV, K]
  at::Tensor drate;  // [N, HV, K] what adds up to the gradient of A
};

/// g [N, HV, K]. A value depends on its own y and rate alone, bit for bit: decoding beside others relies on
/// it.
at::Tensor forward_cpu(const Inputs& in);
Gradients backward_cpu(const Inputs& in, const at::Tensor& dg);
at::Tensor forward_aten(const Inputs& in);
Gradients backward_aten(const Inputs& in, const at::Tensor& dg);

/// What the CUDA kernels (kernels/decay_gate.h) take: the projection before any arithmetic.
struct Projection {
  at::Tensor a;                       // [N, HV, K] bf16 or fp32
  at::Tensor rate;                    // [HV] fp32, exp(A)
  at::Tensor bias;                    // [HV * K] fp32
  std::optional<double> lower_bound;  // c
};

struct KernelGradients {
  at::Tensor da;     // [N, HV, K] dtype of a
  at::Tensor dbias;  // [HV * K] fp32
  at::Tensor drate;  // [HV, K] fp32, summed over the tokens
};

/// Whether the kernels take this projection.
bool on_kernel_path(const at::Tensor& a);
at::Tensor forward_kernel(const Projection& in);
KernelGradients backward_kernel(const Projection& in, const at::Tensor& dg);

}  // namespace osdn::ops::decay_gate_detail
