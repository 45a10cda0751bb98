// The product of ops/linear.h without gradients on a CPU: loops in which a row of the result depends on that
// row of the input alone, bit for bit, whatever the other rows are and however many (docs/ops/linear.md).
#pragma once

#include "tensor/fwd.h"

namespace osdn::ops::linear_detail {

/// x [N, D_in], value [D_out, D_in], bias [D_out] or undefined; float32 or float64 on CPU. Returns
/// [N, D_out].
at::Tensor forward_cpu(const at::Tensor& x, const at::Tensor& value, const at::Tensor& bias);

}  // namespace osdn::ops::linear_detail
