// Depthwise causal convolution of the projections, with SiLU, document resets and carried history
// (docs/ops/short_conv.md):  y[t, c] = silu(sum_j w[c, j] x[t - (W-1) + j, c]), x = 0 (or the history) left
// of the start.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/sequences.h"
#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::ops {

// N: packed tokens; S: sequences; D: channels; W: taps; R: columns handed through.
struct ShortConvArgs {
  at::Tensor x;   // [N, D + R] float64, float32 or bf16
  Weight weight;  // [D, 1, W]; w[:, 0, W-1] multiplies the current token
  at::Tensor
      initial_state;  // [S, D, W] dtype of x: slot j holds x[-W + j]; undefined: zeros. Slot 0 is never read
  SequencesPtr sequences;
  bool silu = true;
  std::vector<int64_t>
      parts;         // widths, D in all, of the pieces of y: queries, keys, values; empty: one piece
  int64_t rest = 0;  // R, the last columns of a projection that are not convolved
};

struct ShortConvOutput {
  at::Tensor y;                   // [N, D]; undefined where parts were asked for
  std::vector<at::Tensor> parts;  // [N, width] each
  at::Tensor rest;                // [N, R] as they came; undefined where R is 0
  at::Tensor final_state;  // [S, D, W] the last W inputs of each sequence, zeros or history left of its start
};

/// Differentiable in x, weight and initial_state, from all outputs. fp32 accumulation. Asking for parts and
/// the rest here spares autograd a gradient of the full width for every slice. On CUDA one kernel a pass
/// where D and the widths of the parts are multiples of 4 and W is 2, 3 or 4, ATen otherwise.
ShortConvOutput short_conv(const ShortConvArgs& args);

/// Token by token in plain ATen, differentiable by autograd.
ShortConvOutput short_conv_ref(const ShortConvArgs& args);

}  // namespace osdn::ops
