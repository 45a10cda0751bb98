// The implementations behind ops/decay_gate.h: loops for float32 and float64 on CPU, kernels for bf16 and
// float32 on CUDA (kernels/decay_gate.h), ATen for everything else. Tests hold one against the other.
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

/// Gradients of all inputs; those of the weights in fp32.
struct KernelGradients {
  at::Tensor da;         // shape and dtype of a
  at::Tensor dlog_rate;  // [HV]
  at::Tensor dbias;      // [HV * K]
};

/// Whether a [N, HV] or [N, HV, K] and its weights are for the kernels.
bool on_kernel_path(const at::Tensor& a, const at::Tensor& log_rate, const at::Tensor& bias);
/// g, shape of a; fp32, or the dtype of a where `rounded`.
at::Tensor forward_kernel(const at::Tensor& a, const at::Tensor& log_rate, const at::Tensor& bias,
                          std::optional<double> lower_bound, bool rounded);
/// `dg` in the dtype that g had.
KernelGradients backward_kernel(const at::Tensor& a, const at::Tensor& log_rate, const at::Tensor& bias,
                                std::optional<double> lower_bound, const at::Tensor& dg);

}  // namespace osdn::ops::decay_gate_detail
