// z = silu(gate) * up, the product in fp32, one rounding; recomputed in backward (docs/ops/swiglu.md).
#pragma once

#include "tensor/fwd.h"

namespace osdn::ops {

/// gate_up [N, 2 * I]: gate in columns 0..I-1, up in I..2I-1 (one projection computes both). Returns [N, I].
at::Tensor swiglu(const at::Tensor& gate_up);
at::Tensor swiglu_ref(const at::Tensor& gate_up);

}  // namespace osdn::ops
