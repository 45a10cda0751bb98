// Depthwise causal convolution of the projections, with SiLU, document resets and carried history
// (docs/ops/short_conv.md):  y[t, c] = silu(sum_j w[c, j] x[t - (W-1) + j, c]), x = 0 (or the history) left
// of the start.
#pragma once

#include "ops/sequences.h"
#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::ops {

// N: packed tokens; S: sequences; D: channels; W: taps.
struct ShortConvArgs {
  at::Tensor x;   // [N, D] float64, float32 or bf16
  Weight weight;  // [D, 1, W]; w[:, 0, W-1] multiplies the current token
  at::Tensor
      initial_state;  // [S, D, W] dtype of x: slot j holds x[-W + j]; undefined: zeros. Slot 0 is never read
  SequencesPtr sequences;
  bool silu = true;
};

struct ShortConvOutput {
  at::Tensor y;            // [N, D]
  at::Tensor final_state;  // [S, D, W] the last W inputs of each sequence, zeros or history left of its start
};

/// Differentiable in x, weight and initial_state, from both outputs. fp32 accumulation.
ShortConvOutput short_conv(const ShortConvArgs& args);

/// Token by token in plain ATen, differentiable by autograd.
ShortConvOutput short_conv_ref(const ShortConvArgs& args);

}  // namespace osdn::ops
