// The implementations behind ops/swiglu.h: loops for float32 and float64 on CPU, kernels for bf16 and float32
// on CUDA, ATen for everything else. Tests hold one against the other.
#pragma once

#include "tensor/fwd.h"

namespace osdn::ops::swiglu_detail {

// gate_up [N, 2 * I] and dz [N, I], contiguous.
at::Tensor forward_cpu(const at::Tensor& gate_up);
at::Tensor backward_cpu(const at::Tensor& gate_up, const at::Tensor& dz);

/// bf16 or float32 on CUDA, I dividing into 16 bytes.
bool on_kernel_path(const at::Tensor& gate_up);
at::Tensor forward_kernel(const at::Tensor& gate_up);
at::Tensor backward_kernel(const at::Tensor& gate_up, const at::Tensor& dz);

at::Tensor forward_aten(const at::Tensor& gate_up);
at::Tensor backward_aten(const at::Tensor& gate_up, const at::Tensor& dz);

}  // namespace osdn::ops::swiglu_detail
