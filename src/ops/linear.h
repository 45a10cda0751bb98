// y = x W^T (+ b) with the weight gradient added straight into its sink (docs/ops/linear.md). On CUDA the
// gradient GEMM writes fp32 into the sink; on CPU it is computed, cast and added.
#pragma once

#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::ops {

/// x [N, D_in]; weight [D_out, D_in]; bias [D_out] or undefined. Returns [N, D_out] in the dtype of x.
/// Several projections of one input: join() their weights (tensor/weight.h). A row of the result depends on
/// that row of x alone, bit for bit: on a CPU, float32 or float64, with weights without sinks and gradients;
/// on CUDA, float32 or bf16, where SequencesApart (ops/sequences.h) asks for it.
at::Tensor linear(const at::Tensor& x, const Weight& weight, const Weight& bias = {});

/// Sum over the last dimension, which stays with size 1: [..., D] -> [..., 1] in the dtype of x.
/// Differentiable; where SequencesApart asks for it, a product with ones.
at::Tensor sum_last(const at::Tensor& x);

/// sink += dy^T x, the product in the dtype of the sink: [D_out, D_in] += [N, D_out]^T [N, D_in]. No
/// autograd. For ops that contain a projection.
void add_outer_product(const at::Tensor& sink, const at::Tensor& dy, const at::Tensor& x);

at::Tensor linear_ref(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace osdn::ops
