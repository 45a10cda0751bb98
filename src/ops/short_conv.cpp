#include "ops/short_conv.h"

#include "base/error.h"
#include "ops/detail/dispatch.h"
#include "ops/detail/short_conv_paths.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace short_conv_detail {

// What backward needs beside the saved tensors.
struct Held : torch::CustomClassHolder {
  SequencesPtr sequences;
  bool silu = true;
};

Inputs make_inputs(const at::Tensor& x, const at::Tensor& value, const at::Tensor& initial_state,
                   const SequencesPtr& sequences, bool silu) {
  return {.x = x.contiguous(),
          // [D, 1, W] -> [W, D], so that the loops run over channels
          .taps = value.squeeze(1).to(accumulation_type(x.scalar_type())).t().contiguous(),
          .history = initial_state.defined() ? initial_state.contiguous() : initial_state,
          .sequences = sequences,
          .silu = silu};
}

class ShortConvFunction : public torch::autograd::Function<ShortConvFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                                                const at::Tensor& value,
                                                const std::optional<at::Tensor>& history,
                                                const std::optional<at::Tensor>& /*anchor*/,
                                                const Weight& weight, const SequencesPtr& sequences,
                                                bool silu) {
    const at::Tensor initial_state = history.value_or(at::Tensor());
    const Inputs in = make_inputs(x, value, initial_state, sequences, silu);
    const Outputs out = uses_loops(x) ? forward_cpu(in) : forward_aten(in);
    auto held = c10::make_intrusive<Held>();
    held->sequences = sequences;
    held->silu = silu;
    ctx->save_for_backward({x, value, initial_state});
    ctx->saved_data["held"] = c10::IValue::make_capsule(held);
    ctx->saved_data["sink"] = weight.sink;
    ctx->set_materialize_grads(false);
    return {out.y, out.final_state};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    if (!gradients[0].defined() && !gradients[1].defined()) return torch::autograd::variable_list(7);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& value = saved[1];
    const auto capsule = ctx->saved_data["held"].toCapsule();
    const auto& held = static_cast<const Held&>(*capsule);
    const Inputs in = make_inputs(saved[0], value, saved[2], held.sequences, held.silu);
    const at::Tensor dy = gradients[0].defined() ? gradients[0].contiguous() : at::zeros_like(in.x);
    const at::Tensor dfinal = gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    const Gradients out = uses_loops(in.x) ? backward_cpu(in, dy, dfinal) : backward_aten(in, dy, dfinal);
    const at::Tensor sink = ctx->saved_data["sink"].toTensor();
    at::Tensor dw;
    if (sink.defined() || ctx->needs_input_grad(1))
      dw = deliver_gradient(sink, out.dtaps.t().unsqueeze(1), value.scalar_type());
    return {out.dx, dw, out.dhistory, {}, {}, {}, {}};
  }
};

}  // namespace short_conv_detail

ShortConvOutput short_conv(const ShortConvArgs& args) {
  const at::Tensor& x = args.x;
  check_shape("short_conv", "x", x, {-1, -1});
  check_dtype("short_conv", "x", x, {at::kFloat, at::kBFloat16, at::kDouble});
  check_weight("short_conv", "weight", args.weight, {x.size(1), 1, -1},
               {x.scalar_type(), accumulation_type(x.scalar_type())}, x);
  if (!args.sequences || args.sequences->num_tokens() != x.size(0))
    throw UserError("short_conv: sequences: expected offsets that end at {} tokens, got {}", x.size(0),
                    args.sequences ? std::to_string(args.sequences->num_tokens()) : "none");
  if (args.initial_state.defined()) {
    check_shape("short_conv", "initial_state", args.initial_state,
                {args.sequences->num_sequences(), x.size(1), args.weight.value.size(2)});
    check_dtype("short_conv", "initial_state", args.initial_state, {x.scalar_type()});
    check_same_device("short_conv", "initial_state", args.initial_state, x);
  }
  const auto out = short_conv_detail::ShortConvFunction::apply(
      x, args.weight.value, optional_input(args.initial_state), optional_input(gradient_anchor(args.weight)),
      args.weight, args.sequences, args.silu);
  return {.y = out[0], .final_state = out[1]};
}

}  // namespace osdn::ops
