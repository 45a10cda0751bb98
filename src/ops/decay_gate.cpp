#include "ops/decay_gate.h"

#include "base/error.h"
#include "ops/detail/decay_gate_paths.h"
#include "ops/detail/dispatch.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace decay_gate_detail {

at::Tensor forward_aten(const Inputs& in) {
  const at::Tensor rate = in.rate.unsqueeze(1);                       // [HV, 1]
  return in.lower_bound ? *in.lower_bound * at::sigmoid(rate * in.y)  // (eq. 2)
                        : -rate * at::softplus(in.y);                 // (eq. 1)
}

Gradients backward_aten(const Inputs& in, const at::Tensor& dg) {
  const at::Tensor rate = in.rate.unsqueeze(1);  // [HV, 1]
  if (in.lower_bound) {
    const at::Tensor z = rate * in.y;
    const at::Tensor s = at::sigmoid(z);
    const at::Tensor dz = dg * (*in.lower_bound * s * (1 - s));
    return {.dy = dz * rate, .drate = dz * z};  // (eq. 5, 6)
  }
  return {.dy = -dg * rate * at::sigmoid(in.y), .drate = -dg * rate * at::softplus(in.y)};  // (eq. 3, 4)
}

Inputs inputs_of(const at::Tensor& a, const at::Tensor& log_rate, const at::Tensor& bias,
                 std::optional<double> lower_bound) {
  const at::ScalarType type = accumulation_type(a.scalar_type());
  const int64_t HV = a.size(1);
  const at::Tensor wide = a.to(type).reshape({a.size(0), HV, a.dim() == 3 ? a.size(2) : 1});
  return {.y = (wide + bias.to(type).view({HV, -1})).contiguous(),
          .rate = log_rate.to(type).exp(),
          .lower_bound = lower_bound};
}

/// One value a head: the sum over tokens and channels in the order of sum_rows. x [N, HV, K].
at::Tensor sum_per_head(const at::Tensor& x) {
  return sum_rows(x.flatten(1)).view({x.size(1), x.size(2)}).sum(1);
}

class DecayGateFunction : public torch::autograd::Function<DecayGateFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& a,
                            const at::Tensor& log_rate, const at::Tensor& bias,
                            const std::optional<at::Tensor>& /*anchor*/, const Weight& rate_weight,
                            const Weight& bias_weight, std::optional<double> lower_bound, bool rounded) {
    ctx->save_for_backward({a, log_rate, bias});
    ctx->saved_data["rate_sink"] = rate_weight.sink;
    ctx->saved_data["bias_sink"] = bias_weight.sink;
    ctx->saved_data["lower_bound"] = lower_bound;
    if (on_kernel_path(a, log_rate, bias)) return forward_kernel(a, log_rate, bias, lower_bound, rounded);
    const Inputs in = inputs_of(a, log_rate, bias, lower_bound);
    const at::Tensor g = uses_loops(a) ? forward_cpu(in) : forward_aten(in);
    return g.view(a.sizes()).to(rounded ? a.scalar_type() : g.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& a = saved[0];
    const auto lower_bound = ctx->saved_data["lower_bound"].toOptional<double>();
    const auto deliver = [&](const char* sink, size_t input, const auto& sum) -> at::Tensor {
      const at::Tensor target = ctx->saved_data[sink].toTensor();
      if (!target.defined() && !ctx->needs_input_grad(input)) return {};
      return deliver_gradient(target, sum(), saved[input].scalar_type());
    };
    if (on_kernel_path(a, saved[1], saved[2])) {
      const KernelGradients out = backward_kernel(a, saved[1], saved[2], lower_bound, gradients[0]);
      const at::Tensor dlog_rate = deliver("rate_sink", 1, [&] { return out.dlog_rate; });
      return {out.da, dlog_rate, deliver("bias_sink", 2, [&] { return out.dbias; }), {}, {}, {}, {}, {}};
    }
    const Inputs in = inputs_of(a, saved[1], saved[2], lower_bound);
    const at::Tensor dg =
        gradients[0].to(in.y.scalar_type()).reshape(in.y.sizes()).contiguous();  // [N, HV, K]
    const Gradients out = uses_loops(a) ? backward_cpu(in, dg) : backward_aten(in, dg);
    const at::Tensor dlog_rate = deliver("rate_sink", 1, [&] { return sum_per_head(out.drate); });
    const at::Tensor dbias = deliver("bias_sink", 2, [&] { return sum_rows(out.dy.flatten(1)); });  // (eq. 7)
    return {out.dy.view(a.sizes()).to(a.scalar_type()), dlog_rate, dbias, {}, {}, {}, {}, {}};
  }
};

}  // namespace decay_gate_detail

at::Tensor decay_gate(const DecayGateArgs& args) {
  constexpr const char* kOp = "decay_gate";
  const at::Tensor& a = args.a;
  if (!a.defined() || (a.dim() != 2 && a.dim() != 3))
    throw UserError("{}: a: expected [tokens, heads] or [tokens, heads, channels], got {}", kOp,
                    a.defined() ? c10::str(a.sizes()) : "none");
  check_dtype(kOp, "a", a, {at::kFloat, at::kBFloat16, at::kDouble});
  const at::ScalarType type = accumulation_type(a.scalar_type());
  check_weight(kOp, "log_rate", args.log_rate, {a.size(1)}, {a.scalar_type(), type}, a);
  check_weight(kOp, "bias", args.bias, {a.dim() == 3 ? a.size(1) * a.size(2) : a.size(1)},
               {a.scalar_type(), type}, a);
  if (args.lower_bound && !(*args.lower_bound < 0))
    throw UserError("{}: lower_bound: expected a number below 0, got {}", kOp, *args.lower_bound);
  const at::Tensor anchor = gradient_anchor(args.log_rate.sink.defined() ? args.log_rate : args.bias);
  return decay_gate_detail::DecayGateFunction::apply(a, args.log_rate.value, args.bias.value,
                                                     optional_input(anchor), args.log_rate, args.bias,
                                                     args.lower_bound, args.rounded);
}

}  // namespace osdn::ops
