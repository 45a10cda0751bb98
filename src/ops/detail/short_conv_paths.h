// The implementations behind ops/short_conv.h: loops for float32 and float64 on CPU, kernels for bf16 and
// float32 on CUDA, ATen for everything else. Tests hold one against the other.
#pragma once

#include <vector>

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

// What the kernels take: the arguments of the op as they are.
struct KernelInputs {
  at::Tensor x;              // [N, D], rows may be strided
  at::Tensor weight;         // [D, 1, W]
  at::Tensor initial_state;  // [S, D, W] or undefined
  SequencesPtr sequences;
  bool silu = true;
};

bool on_kernel_path(const at::Tensor& x, const at::Tensor& weight, const std::vector<int64_t>& parts);
Outputs forward_kernel(const KernelInputs& inputs);
/// dy: the gradients of the parts, [N, width] or undefined. Writes dx [N, D], whose rows may be strided, and
/// the gradient of the initial state [S, D, W] where it is defined; adds the weight's to `sink`, or without
/// one returns it, [D, 1, W] fp32.
at::Tensor backward_kernel(const KernelInputs& inputs, const std::vector<at::Tensor>& dy,
                           const std::vector<int64_t>& widths, const at::Tensor& dfinal, const at::Tensor& dx,
                           const at::Tensor& dhistory, const at::Tensor& sink);

Outputs forward_aten(const Inputs& inputs);
Gradients backward_aten(const Inputs& inputs, const at::Tensor& dy, const at::Tensor& dfinal);

}  // namespace osdn::ops::short_conv_detail
