// The decay gate by the CUDA kernels (kernels/decay_gate.h): their arguments.
#include "kernels/decay_gate.h"

#include "ops/detail/decay_gate_paths.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::decay_gate_detail {
namespace decay_gate_kernel_detail {

/// The rows as [N, HV * K]: where they lie, if each is in one piece, else copied.
at::Tensor rows_of(const at::Tensor& a) {
  const at::Tensor rows = a.flatten(1);
  return rows.size(1) <= 1 || rows.stride(1) == 1 ? rows : rows.contiguous();
}

/// `rows`: rows_of(a). `gates`: g or its gradient.
kernels::DecayGateInputs inputs_of(const at::Tensor& a, const at::Tensor& rows, const at::Tensor& log_rate,
                                   const at::Tensor& bias, std::optional<double> lower_bound,
                                   const at::Tensor& gates) {
  return {.a = rows.const_data_ptr(),
          .log_rate = log_rate.const_data_ptr<float>(),
          .bias = bias.const_data_ptr<float>(),
          .num_rows = a.size(0),
          .num_heads = a.size(1),
          .num_channels = a.dim() == 3 ? a.size(2) : 1,
          .row_stride = rows.stride(0),
          .bounded = lower_bound.has_value(),
          .lower_bound = static_cast<float>(lower_bound.value_or(0)),
          .bf16 = a.scalar_type() == at::kBFloat16,
          .bf16_gates = gates.scalar_type() == at::kBFloat16};
}

}  // namespace decay_gate_kernel_detail

bool on_kernel_path(const at::Tensor& a, const at::Tensor& log_rate, const at::Tensor& bias) {
  const bool typed = a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kFloat;
  return a.is_cuda() && typed && log_rate.scalar_type() == at::kFloat && bias.scalar_type() == at::kFloat &&
         a.numel() > 0 && compute_capability() >= 80;
}

at::Tensor forward_kernel(const at::Tensor& a, const at::Tensor& log_rate, const at::Tensor& bias,
                          std::optional<double> lower_bound, bool rounded) {
  namespace detail = decay_gate_kernel_detail;
  const at::Tensor rows = detail::rows_of(a);      // [N, HV * K]
  const at::Tensor rates = log_rate.contiguous();  // [HV]
  const at::Tensor offsets = bias.contiguous();    // [HV * K]
  at::Tensor g = at::empty(a.sizes(), a.options().dtype(rounded ? a.scalar_type() : at::kFloat));
  launch(kernels::DecayGateForwardArgs{.in = detail::inputs_of(a, rows, rates, offsets, lower_bound, g),
                                       .g = g.data_ptr()},
         current_stream());
  return g;
}

KernelGradients backward_kernel(const at::Tensor& a, const at::Tensor& log_rate, const at::Tensor& bias,
                                std::optional<double> lower_bound, const at::Tensor& dg) {
  namespace detail = decay_gate_kernel_detail;
  const at::Tensor rows = detail::rows_of(a);      // [N, HV * K]
  const at::Tensor rates = log_rate.contiguous();  // [HV]
  const at::Tensor offsets = bias.contiguous();    // [HV * K]
  const at::Tensor upstream = dg.contiguous();     // shape of a
  at::Tensor da = at::empty(a.sizes(), a.options());
  const at::TensorOptions fp32 = a.options().dtype(at::kFloat);
  at::Tensor partials = at::empty({kernels::decay_gate_num_partials(a.size(0)), 2, rows.size(1)}, fp32);
  at::Tensor sums = at::empty({2, rows.size(1)}, fp32);  // of the bias, of the log rate by column
  launch(
      kernels::DecayGateBackwardArgs{.in = detail::inputs_of(a, rows, rates, offsets, lower_bound, upstream),
                                     .d_g = upstream.const_data_ptr(),
                                     .d_a = da.data_ptr(),
                                     .partials = partials.mutable_data_ptr<float>(),
                                     .d_columns = sums.mutable_data_ptr<float>()},
      current_stream());
  return {.da = da, .dlog_rate = sums[1].view({a.size(1), -1}).sum(1), .dbias = sums[0]};
}

}  // namespace osdn::ops::decay_gate_detail
