// The log decay of gated backbones from a projection of the token (docs/ops/decay_gate.md), in fp32:
//   g = -exp(A) softplus(a + b)                   (eq. 1)
//   g = c sigmoid(exp(A) (a + b)), c < 0          (eq. 2), bounded: g in (c, 0)
#pragma once

#include <optional>

#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::ops {

/// a [N, HV] (one decay a value head) or [N, HV, K] (one a channel), float64, float32 or bf16; log_rate A
/// [HV]; bias b [HV] or [HV * K]; both float32 (float64 with float64) or in the dtype of a. `lower_bound` c:
/// absent for eq. 1. Returns the shape of `a` in float32 (float64 for float64), <= 0. Differentiable in all
/// three.
at::Tensor decay_gate(const at::Tensor& a, const Weight& log_rate, const Weight& bias,
                      std::optional<double> lower_bound);
at::Tensor decay_gate_ref(const at::Tensor& a, const at::Tensor& log_rate, const at::Tensor& bias,
                          std::optional<double> lower_bound);

}  // namespace osdn::ops
