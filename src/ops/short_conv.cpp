#include "ops/short_conv.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ops/detail/dispatch.h"
#include "ops/detail/short_conv_paths.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace short_conv_detail {

// How a call was made; what backward needs beside the saved tensors.
struct Settings : torch::CustomClassHolder {
  SequencesPtr sequences;
  bool silu = true;
  std::vector<int64_t> widths;  // of the pieces of y
  int64_t rest = 0;             // R
  at::Tensor sink;              // of the weight, or undefined
};
using SettingsPtr = c10::intrusive_ptr<Settings>;

Inputs make_inputs(const at::Tensor& x, const at::Tensor& value, const at::Tensor& initial_state,
                   const Settings& settings) {
  return {.x = x.contiguous(),
          // [D, 1, W] -> [W, D], so that the loops run over channels
          .taps = value.squeeze(1).to(accumulation_type(x.scalar_type())).t().contiguous(),
          .history = initial_state.defined() ? initial_state.contiguous() : initial_state,
          .sequences = settings.sequences,
          .silu = settings.silu};
}

/// The gradients of the pieces side by side: [N, D].
at::Tensor side_by_side(const std::vector<at::Tensor>& pieces, const std::vector<int64_t>& widths,
                        const at::Tensor& x) {
  std::vector<at::Tensor> whole;
  for (size_t i = 0; i < pieces.size(); ++i)
    whole.push_back(pieces[i].defined() ? pieces[i] : at::zeros({x.size(0), widths[i]}, x.options()));
  return whole.size() == 1 ? whole[0].contiguous() : at::cat(whole, 1);
}

class ShortConvFunction : public torch::autograd::Function<ShortConvFunction> {
 public:
  // Outputs: the pieces of y, the final state, the rest where there is one.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const at::Tensor& input, const at::Tensor& value,
                                                const std::optional<at::Tensor>& history,
                                                const std::optional<at::Tensor>& /*anchor*/,
                                                const SettingsPtr& settings) {
    const at::Tensor initial_state = history.value_or(at::Tensor());
    const int64_t num_channels = value.size(0);             // D
    const at::Tensor x = input.narrow(1, 0, num_channels);  // [N, D]
    Outputs out;
    if (on_kernel_path(x, value, settings->widths)) {
      out = forward_kernel({x, value, initial_state, settings->sequences, settings->silu});
    } else {
      const Inputs in = make_inputs(x, value, initial_state, *settings);
      out = uses_loops(x) ? forward_cpu(in) : forward_aten(in);
    }
    ctx->save_for_backward({input, value, initial_state});
    ctx->saved_data["settings"] = c10::IValue::make_capsule(settings);
    ctx->set_materialize_grads(false);
    torch::autograd::variable_list outputs = {out.y};
    if (settings->widths.size() > 1) outputs = out.y.split_with_sizes(settings->widths, 1);
    outputs.push_back(out.final_state);
    if (settings->rest > 0) outputs.push_back(input.narrow(1, num_channels, settings->rest));
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    torch::autograd::variable_list result(5);
    const bool any = std::any_of(gradients.begin(), gradients.end(),
                                 [](const at::Tensor& gradient) { return gradient.defined(); });
    if (!any) return result;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& value = saved[1];
    const auto capsule = ctx->saved_data["settings"].toCapsule();
    const auto& settings = static_cast<const Settings&>(*capsule);
    const int64_t num_channels = value.size(0);
    const at::Tensor x = saved[0].narrow(1, 0, num_channels);
    const auto num_parts = static_cast<std::ptrdiff_t>(settings.widths.size());
    const std::vector<at::Tensor> dy(gradients.begin(), gradients.begin() + num_parts);
    const at::Tensor& dfinal = gradients[settings.widths.size()];
    const at::Tensor drest = settings.rest > 0 ? gradients.back() : at::Tensor();
    const bool needs_weight = settings.sink.defined() || ctx->needs_input_grad(1);
    if (on_kernel_path(x, value, settings.widths)) {
      result[0] = at::empty(saved[0].sizes(), x.options());  // [N, D + R]
      if (saved[2].defined()) result[2] = at::empty(saved[2].sizes(), x.options());
      const at::Tensor dw =
          backward_kernel({x, value, saved[2], settings.sequences, settings.silu}, dy, settings.widths,
                          dfinal, result[0].narrow(1, 0, num_channels), result[2], settings.sink);
      if (dw.defined() && needs_weight) result[1] = dw.to(value.scalar_type());
      if (settings.rest > 0) {
        const at::Tensor columns = result[0].narrow(1, num_channels, settings.rest);
        if (drest.defined())
          columns.copy_(drest);
        else
          columns.zero_();
      }
      return result;
    }
    const Inputs in = make_inputs(x, value, saved[2], settings);
    const at::Tensor whole = side_by_side(dy, settings.widths, x);
    const at::Tensor last = dfinal.defined() ? dfinal.contiguous() : at::Tensor();
    const Gradients out = uses_loops(in.x) ? backward_cpu(in, whole, last) : backward_aten(in, whole, last);
    result[0] = settings.rest > 0 ? side_by_side({out.dx, drest}, {num_channels, settings.rest}, x) : out.dx;
    if (needs_weight)
      result[1] = deliver_gradient(settings.sink, out.dtaps.t().unsqueeze(1), value.scalar_type());
    result[2] = out.dhistory;
    return result;
  }
};

}  // namespace short_conv_detail

ShortConvOutput short_conv(const ShortConvArgs& args) {
  const at::Tensor& x = args.x;
  check_shape("short_conv", "x", x, {-1, -1});
  check_dtype("short_conv", "x", x, {at::kFloat, at::kBFloat16, at::kDouble});
  const int64_t num_channels = x.size(1) - args.rest;
  check_weight("short_conv", "weight", args.weight, {num_channels, 1, -1},
               {x.scalar_type(), accumulation_type(x.scalar_type())}, x);
  if (!args.sequences || args.sequences->num_tokens() != x.size(0))
    throw UserError("short_conv: sequences: expected offsets that end at {} tokens, got {}", x.size(0),
                    args.sequences ? std::to_string(args.sequences->num_tokens()) : "none");
  if (args.initial_state.defined()) {
    check_shape("short_conv", "initial_state", args.initial_state,
                {args.sequences->num_sequences(), num_channels, args.weight.value.size(2)});
    check_dtype("short_conv", "initial_state", args.initial_state, {x.scalar_type()});
    check_same_device("short_conv", "initial_state", args.initial_state, x);
  }
  const auto settings = c10::make_intrusive<short_conv_detail::Settings>();
  settings->sequences = args.sequences;
  settings->silu = args.silu;
  settings->widths = args.parts.empty() ? std::vector<int64_t>{num_channels} : args.parts;
  settings->rest = args.rest;
  settings->sink = args.weight.sink;
  const int64_t width = std::accumulate(settings->widths.begin(), settings->widths.end(), int64_t{0});
  if (width != num_channels)
    throw UserError("short_conv: parts: expected widths that add up to {}, got {}", num_channels, width);
  const auto outputs =
      short_conv_detail::ShortConvFunction::apply(x, args.weight.value, optional_input(args.initial_state),
                                                  optional_input(gradient_anchor(args.weight)), settings);
  const size_t num_parts = settings->widths.size();
  ShortConvOutput out;
  out.final_state = outputs[num_parts];
  if (args.rest > 0) out.rest = outputs.back();
  if (args.parts.empty())
    out.y = outputs[0];
  else
    out.parts.assign(outputs.begin(), outputs.begin() + static_cast<std::ptrdiff_t>(num_parts));
  return out;
}

}  // namespace osdn::ops
