// The short convolution by the CUDA kernels (kernels/short_conv.h): their arguments.
#include "kernels/short_conv.h"

#include <algorithm>

#include "base/error.h"
#include "ops/detail/short_conv_paths.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::short_conv_detail {
namespace short_conv_kernel_detail {

/// Rows the kernels can read [N, columns], or a contiguous copy.
at::Tensor readable(const at::Tensor& rows) {
  const auto bytes = static_cast<uintptr_t>(kernels::kShortConvChannels * rows.element_size());
  const bool fits = rows.stride(1) == 1 && rows.stride(0) % kernels::kShortConvChannels == 0 &&
                    reinterpret_cast<uintptr_t>(rows.data_ptr()) % bytes == 0;
  // Not contiguous(): a single row passes for contiguous whatever its stride and place.
  return fits || rows.numel() == 0 ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

void* pointer(const at::Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

/// The arguments with what keeps them alive.
struct Held {
  at::Tensor x, weight, history;
  kernels::ShortConvInputs in;

  explicit Held(const KernelInputs& inputs)
      : x(readable(inputs.x)),
        weight(inputs.weight.contiguous()),
        history(inputs.initial_state.defined() ? inputs.initial_state.contiguous() : at::Tensor()) {
    const Sequences& sequences = *inputs.sequences;
    in = {.offsets = sequences.offsets().const_data_ptr<int64_t>(),
          .num_tokens = sequences.num_tokens(),
          .num_sequences = sequences.num_sequences(),
          .num_channels = x.size(1),
          .num_taps = static_cast<int>(weight.size(2)),
          .bf16 = x.scalar_type() == at::kBFloat16,
          .weight_bf16 = weight.scalar_type() == at::kBFloat16,
          .silu = inputs.silu,
          .x = x.data_ptr(),
          .x_stride = x.stride(0),
          .weight = weight.data_ptr(),
          .history = pointer(history)};
  }
};

}  // namespace short_conv_kernel_detail

bool on_kernel_path(const at::Tensor& x, const at::Tensor& weight, const std::vector<int64_t>& parts) {
  const auto fits = [](int64_t width) { return width % kernels::kShortConvChannels == 0; };
  return x.is_cuda() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat) &&
         x.size(1) > 0 && weight.size(2) >= kernels::kShortConvMinTaps &&
         weight.size(2) <= kernels::kShortConvMaxTaps &&
         parts.size() <= static_cast<size_t>(kernels::kShortConvMaxParts) &&
         std::all_of(parts.begin(), parts.end(), fits) && compute_capability() >= 80;
}

Outputs forward_kernel(const KernelInputs& inputs) {
  const short_conv_kernel_detail::Held held(inputs);
  Outputs out;
  out.y = at::empty({held.x.size(0), held.x.size(1)}, held.x.options());
  out.final_state = at::empty({held.in.num_sequences, held.x.size(1), held.weight.size(2)}, held.x.options());
  launch(
      kernels::ShortConvForwardArgs{
          .in = held.in, .y = out.y.data_ptr(), .final_state = out.final_state.data_ptr()},
      current_stream());
  return out;
}

at::Tensor backward_kernel(const KernelInputs& inputs, const std::vector<at::Tensor>& dy,
                           const std::vector<int64_t>& widths, const at::Tensor& dfinal, const at::Tensor& dx,
                           const at::Tensor& dhistory, const at::Tensor& sink) {
  namespace detail = short_conv_kernel_detail;
  const detail::Held held(inputs);
  const at::TensorOptions fp32 = held.x.options().dtype(at::kFloat);
  const int64_t D = held.x.size(1);
  const int64_t W = held.weight.size(2);
  const at::Tensor partials =
      at::empty({kernels::short_conv_num_partials(held.in.num_tokens, D), D, W}, fp32);
  const at::Tensor dw = sink.defined() ? sink : at::empty({D, 1, W}, fp32);
  const at::Tensor last = dfinal.defined() ? dfinal.contiguous() : at::Tensor();
  const at::Tensor writable = detail::readable(dx);
  kernels::ShortConvBackwardArgs args{.in = held.in,
                                      .num_parts = static_cast<int>(dy.size()),
                                      .d_final = detail::pointer(last),
                                      .d_x = writable.data_ptr(),
                                      .d_x_stride = writable.stride(0),
                                      .d_history = detail::pointer(dhistory),
                                      .partials = partials.mutable_data_ptr<float>(),
                                      .d_weight = dw.mutable_data_ptr<float>(),
                                      .accumulate = sink.defined()};
  std::vector<at::Tensor> rows;  // keeps copies alive
  int64_t end = 0;
  for (size_t i = 0; i < dy.size(); ++i) {
    rows.push_back(dy[i].defined() ? detail::readable(dy[i]) : at::Tensor());
    end += widths[i];
    args.d_y[i] = {.data = detail::pointer(rows[i]),
                   .token_stride = rows[i].defined() ? rows[i].stride(0) : 0,
                   .end = end};
  }
  launch(args, current_stream());
  if (!writable.is_same(dx)) dx.copy_(writable);
  return sink.defined() ? at::Tensor() : dw;
}

}  // namespace osdn::ops::short_conv_detail
