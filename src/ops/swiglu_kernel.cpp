// SwiGLU by the CUDA kernels (kernels/swiglu.h): their arguments.
#include "kernels/swiglu.h"

#include "ops/detail/swiglu_paths.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::swiglu_detail {
namespace swiglu_kernel_detail {

constexpr uintptr_t kAlignment = 16;  // bytes

/// The rows, or a copy where they do not begin at a multiple of 16 bytes.
at::Tensor aligned(const at::Tensor& rows) {
  return reinterpret_cast<uintptr_t>(rows.data_ptr()) % kAlignment == 0 ? rows : rows.clone();
}

}  // namespace swiglu_kernel_detail

bool on_kernel_path(const at::Tensor& gate_up) {
  const bool typed = gate_up.scalar_type() == at::kBFloat16 || gate_up.scalar_type() == at::kFloat;
  return gate_up.is_cuda() && typed && gate_up.size(1) / 2 * gate_up.element_size() % 16 == 0 &&
         compute_capability() >= 80;
}

at::Tensor forward_kernel(const at::Tensor& gate_up) {
  const at::Tensor rows = swiglu_kernel_detail::aligned(gate_up);
  at::Tensor z = at::empty({rows.size(0), rows.size(1) / 2}, rows.options());
  launch(kernels::SwigluForwardArgs{.gate_up = rows.data_ptr(),
                                    .z = z.data_ptr(),
                                    .num_rows = z.size(0),
                                    .width = z.size(1),
                                    .bf16 = z.scalar_type() == at::kBFloat16},
         current_stream());
  return z;
}

at::Tensor backward_kernel(const at::Tensor& gate_up, const at::Tensor& dz) {
  const at::Tensor rows = swiglu_kernel_detail::aligned(gate_up);
  const at::Tensor upstream = swiglu_kernel_detail::aligned(dz);
  at::Tensor d_gate_up = at::empty_like(rows);
  launch(kernels::SwigluBackwardArgs{.gate_up = rows.data_ptr(),
                                     .d_z = upstream.data_ptr(),
                                     .d_gate_up = d_gate_up.data_ptr(),
                                     .num_rows = upstream.size(0),
                                     .width = upstream.size(1),
                                     .bf16 = upstream.scalar_type() == at::kBFloat16},
         current_stream());
  return d_gate_up;
}

}  // namespace osdn::ops::swiglu_detail
