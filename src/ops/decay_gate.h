// The log decay of gated backbones from a projection of the token (docs/ops/decay_gate.md), computed in fp32:
//   g = -exp(A) softplus(a + b)                   (eq. 1)
//   g = c sigmoid(exp(A) (a + b)), c < 0          (eq. 2), bounded: g in (c, 0)
#pragma once

#include <optional>

#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::ops {

// N: tokens; HV: value heads; K: channels. Weights are float32 (float64 with float64) or in the dtype of a.
struct DecayGateArgs {
  at::Tensor a;  // [N, HV] (one decay a value head) or [N, HV, K] (one a channel), float64, float32 or bf16
  Weight log_rate;                    // [HV] A
  Weight bias;                        // [HV] or [HV * K] b
  std::optional<double> lower_bound;  // c; absent for eq. 1
  bool rounded =
      false;  // the result in the dtype of a, rounded once, instead of float32 (float64 for float64)
};

/// Shape of `a`, <= 0. Differentiable in a, A and b.
at::Tensor decay_gate(const DecayGateArgs& args);
/// In float32 (float64 for float64).
at::Tensor decay_gate_ref(const at::Tensor& a, const at::Tensor& log_rate, const at::Tensor& bias,
                          std::optional<double> lower_bound);

}  // namespace osdn::ops
