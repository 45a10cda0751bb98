// The product whose rows do not depend on each other by the CUDA kernels (kernels/linear.h): its arguments.
#include "kernels/linear.h"

#include "ops/detail/linear_paths.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::linear_detail {
namespace linear_kernel_detail {

bool is_aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kernels::kLinearPieceBytes == 0;
}

/// With columns of zeros up to a multiple of `columns`, which add nothing to a product.
at::Tensor padded(const at::Tensor& x, int64_t columns) {
  const int64_t missing = (columns - x.size(1) % columns) % columns;
  return missing == 0 ? x : at::constant_pad_nd(x, {0, missing});
}

}  // namespace linear_kernel_detail

bool on_kernel_path(const at::Tensor& x) {
  return x.is_cuda() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat) && x.dim() > 0 &&
         x.size(-1) > 0 && compute_capability() >= 80;
}

at::Tensor forward_kernel(const at::Tensor& x, const at::Tensor& value, const at::Tensor& bias) {
  namespace detail = linear_kernel_detail;
  const int64_t piece = kernels::kLinearPieceBytes / x.element_size();  // numbers
  at::Tensor rows = detail::padded(x, piece);
  at::Tensor weight = detail::padded(value, piece);
  // Not contiguous(): a single row passes for contiguous whatever its place.
  if (rows.stride(1) != 1 || rows.stride(0) % piece != 0 || !detail::is_aligned(rows))
    rows = rows.clone(at::MemoryFormat::Contiguous);
  if (!weight.is_contiguous() || !detail::is_aligned(weight))
    weight = weight.clone(at::MemoryFormat::Contiguous);
  const at::Tensor added = bias.defined() ? bias.contiguous() : bias;
  at::Tensor y = at::empty({x.size(0), value.size(0)}, x.options());
  launch(kernels::LinearArgs{.x = rows.const_data_ptr(),
                             .x_stride = rows.stride(0),
                             .weight = weight.const_data_ptr(),
                             .bias = added.defined() ? added.const_data_ptr() : nullptr,
                             .bias_bf16 = added.defined() && added.scalar_type() == at::kBFloat16,
                             .y = y.mutable_data_ptr(),
                             .num_rows = x.size(0),
                             .num_outputs = value.size(0),
                             .width = rows.size(1),
                             .bf16 = x.scalar_type() == at::kBFloat16},
         current_stream());
  return y;
}

}  // namespace osdn::ops::linear_detail
