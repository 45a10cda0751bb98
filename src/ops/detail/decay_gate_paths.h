// The two implementations behind ops/decay_gate.h: loops for float32 and float64 on CPU, ATen for everything
// else. Tests hold one against the other.
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

}  // namespace osdn::ops::decay_gate_detail
