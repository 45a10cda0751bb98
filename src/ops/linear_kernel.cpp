// The product of a few rows by the CUDA kernel (kernels/linear.h): its arguments.
#include "kernels/linear.h"

#include "ops/detail/linear_paths.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::linear_detail {
namespace linear_kernel_detail {

constexpr uintptr_t kAlignment = 16;  // bytes

bool is_aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignment == 0;
}

}  // namespace linear_kernel_detail

bool on_kernel_path(const at::Tensor& x, const at::Tensor& value) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && x.size(0) >= 1 &&
         x.size(0) <= kernels::kLinearMaxRows && x.size(1) > 0 &&
         x.size(1) % kernels::kLinearWidthMultiple == 0 && value.is_contiguous() &&
         linear_kernel_detail::is_aligned(value) && compute_capability() >= 80;
}

at::Tensor forward_kernel(const at::Tensor& x, const at::Tensor& value, const at::Tensor& bias) {
  const bool readable = x.stride(1) == 1 && x.stride(0) % kernels::kLinearWidthMultiple == 0 &&
                        linear_kernel_detail::is_aligned(x);
  // Not contiguous(): a single row passes for contiguous whatever its place.
  const at::Tensor rows = readable ? x : x.clone(at::MemoryFormat::Contiguous);
  const at::Tensor added = bias.defined() ? bias.contiguous() : bias;
  at::Tensor y = at::empty({x.size(0), value.size(0)}, x.options());
  launch(kernels::LinearArgs{.x = rows.const_data_ptr(),
                             .x_stride = rows.stride(0),
                             .weight = value.const_data_ptr(),
                             .bias = added.defined() ? added.const_data_ptr() : nullptr,
                             .bias_bf16 = added.defined() && added.scalar_type() == at::kBFloat16,
                             .y = y.mutable_data_ptr(),
                             .num_rows = static_cast<int>(x.size(0)),
                             .num_outputs = value.size(0),
                             .width = x.size(1)},
         current_stream());
  return y;
}

}  // namespace osdn::ops::linear_detail
