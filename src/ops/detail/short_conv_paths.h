// The two implementations behind ops/short_conv.h: loops for float32 and float64 on CPU, ATen for everything
// else. Tests hold one against the other.
#pragma once

#include "ops/sequences.h"
#include "tensor/fwd.h"

namespace osdn::ops::short_conv_detail {

// N: packed tokens; S: sequences; D: channels; W: taps. All tensors contiguous.
struct Inputs {
  at::Tensor x;        // [N, D]
  at::Tensor taps;     // [W, D] accumulation dtype; row W-1 multiplies the current token
  at::Tensor history;  // [S, D, W] dtype of x, or undefined: zeros
  SequencesPtr sequences;
  bool silu = true;
};

struct Outputs {
  at::Tensor y;            // [N, D]
  at::Tensor final_state;  // [S, D, W]
};

struct Gradients {
  at::Tensor dx;        // [N, D]
  at::Tensor dtaps;     // [W, D] accumulation dtype
  at::Tensor dhistory;  // [S, D, W] dtype of x; undefined where there was no history
};

/// float32 and float64 on CPU.
Outputs forward_cpu(const Inputs& inputs);
/// dy [N, D]; dfinal [S, D, W] or undefined.
Gradients backward_cpu(const Inputs& inputs, const at::Tensor& dy, const at::Tensor& dfinal);

Outputs forward_aten(const Inputs& inputs);
Gradients backward_aten(const Inputs& inputs, const at::Tensor& dy, const at::Tensor& dfinal);

}  // namespace osdn::ops::short_conv_detail
