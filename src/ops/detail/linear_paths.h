// The product of ops/linear.h without gradients. On a CPU: loops in which a row of the result depends on that
// row of the input alone, bit for bit, whatever the other rows are and however many. On CUDA: kernels of
// the same property, for decoding (docs/ops/linear.md).
#pragma once

#include "tensor/fwd.h"

namespace osdn::ops::linear_detail {

/// x [N, D_in], value [D_out, D_in], bias [D_out] or undefined; float32 or float64 on CPU. Returns
/// [N, D_out].
at::Tensor forward_cpu(const at::Tensor& x, const at::Tensor& value, const at::Tensor& bias);

/// Whether the CUDA kernels (kernels/linear.h) take rows of x [..., D_in].
bool on_kernel_path(const at::Tensor& x);

/// x [N, D_in] bf16 or float32, value [D_out, D_in] likewise, bias [D_out] bf16, float32 or undefined.
/// Returns [N, D_out].
at::Tensor forward_kernel(const at::Tensor& x, const at::Tensor& value, const at::Tensor& bias);

}  // namespace osdn::ops::linear_detail
