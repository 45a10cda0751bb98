// RMS normalisation by the CUDA kernels (kernels/rms_norm.h): their arguments.
#include "kernels/rms_norm.h"

#include "ops/detail/rms_norm_paths.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::rms_norm_detail {
namespace rms_norm_kernel_detail {

constexpr uintptr_t kAlignment = 16;  // bytes

/// The rows, or a copy where they do not begin at a multiple of 16 bytes.
at::Tensor aligned(const at::Tensor& rows) {
  if (!rows.defined() || reinterpret_cast<uintptr_t>(rows.data_ptr()) % kAlignment == 0) return rows;
  return rows.clone();
}

void* pointer(const at::Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

/// The arguments with what keeps them alive.
struct Held {
  at::Tensor x, gate, weight;
  kernels::RmsNormInputs in;

  explicit Held(const Inputs& inputs)
      : x(aligned(inputs.x)), gate(aligned(inputs.gate)), weight(inputs.weight.contiguous()) {
    in = {.num_rows = x.size(0),
          .width = x.size(1),
          .bf16 = x.scalar_type() == at::kBFloat16,
          .x = x.data_ptr(),
          .gate = pointer(gate),
          .swish = inputs.activation == GateActivation::kSwish,
          .weight = weight.const_data_ptr<float>()};
  }
};

}  // namespace rms_norm_kernel_detail

bool on_kernel_path(const at::Tensor& rows) {
  const bool bf16 = rows.scalar_type() == at::kBFloat16;
  if (!rows.is_cuda() || (!bf16 && rows.scalar_type() != at::kFloat)) return false;
  const int64_t width = rows.size(1);
  return width > 0 && width * rows.element_size() % 16 == 0 && width <= kernels::rms_norm_max_width(bf16) &&
         compute_capability() >= 80;
}

Outputs forward_kernel(const Inputs& inputs) {
  namespace detail = rms_norm_kernel_detail;
  const detail::Held held(inputs);
  const at::Tensor residual = detail::aligned(inputs.residual);
  Outputs out;
  out.y = at::empty_like(held.x);
  if (residual.defined()) out.sum = at::empty_like(held.x);
  out.rstd = at::empty({held.x.size(0)}, held.weight.options());
  launch(kernels::RmsNormForwardArgs{.in = held.in,
                                     .residual = detail::pointer(residual),
                                     .round_sum = inputs.round_sum,
                                     .eps = static_cast<float>(inputs.eps),
                                     .y = out.y.data_ptr(),
                                     .sum = detail::pointer(out.sum),
                                     .rstd = out.rstd.mutable_data_ptr<float>()},
         current_stream());
  return out;
}

Gradients backward_kernel(const Inputs& inputs, const at::Tensor& rstd, const at::Tensor& dy,
                          const at::Tensor& dsum, const at::Tensor& sink) {
  namespace detail = rms_norm_kernel_detail;
  const detail::Held held(inputs);
  const at::Tensor upstream = detail::aligned(dy);
  const at::Tensor beside = detail::aligned(dsum);
  const int64_t num_partials = kernels::rms_norm_num_partials(held.in.num_rows, held.in.width, held.in.bf16);
  const at::Tensor partials = at::empty({num_partials, held.in.width}, held.weight.options());
  const at::Tensor dweight = sink.defined() ? sink : at::empty_like(held.weight);
  Gradients out;
  out.dx = at::empty_like(held.x);
  if (held.gate.defined()) out.dgate = at::empty_like(held.x);
  launch(kernels::RmsNormBackwardArgs{.in = held.in,
                                      .rstd = rstd.const_data_ptr<float>(),
                                      .d_y = upstream.data_ptr(),
                                      .d_sum = detail::pointer(beside),
                                      .d_x = out.dx.data_ptr(),
                                      .d_gate = detail::pointer(out.dgate),
                                      .partials = partials.mutable_data_ptr<float>(),
                                      .d_weight = dweight.mutable_data_ptr<float>(),
                                      .accumulate = sink.defined()},
         current_stream());
  if (!sink.defined()) out.dweight = dweight;
  return out;
}

}  // namespace osdn::ops::rms_norm_detail
