#include "ops/rms_norm.h"

#include "base/error.h"
#include "ops/detail/dispatch.h"
#include "ops/detail/rms_norm_paths.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace rms_norm_detail {

at::Tensor as_rows(const at::Tensor& tensor, int64_t width) {
  return tensor.defined() ? tensor.contiguous().view({-1, width}) : tensor;
}

// The forms of the op: inputs that a form does not have are undefined.
enum class Form {
  kPlain,  // and gated
  kAdd,    // the norm of the unrounded sum, and the sum
  kCarry,  // the norm of the rounded sum, and the sum; without a second summand, of x, and x
};

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                                                const at::Tensor& value,
                                                const std::optional<at::Tensor>& maybe_residual,
                                                const std::optional<at::Tensor>& maybe_gate,
                                                const std::optional<at::Tensor>& /*anchor*/,
                                                const Weight& weight, double eps, GateActivation activation,
                                                Form form) {
    const at::Tensor residual = maybe_residual.value_or(at::Tensor());
    const at::Tensor gate = maybe_gate.value_or(at::Tensor());
    const int64_t width = value.size(0);
    Inputs in{.x = as_rows(x, width),
              .residual = as_rows(residual, width),
              .round_sum = form == Form::kCarry,
              .gate = as_rows(gate, width),
              .weight = value.to(accumulation_type(x.scalar_type())),
              .eps = eps,
              .activation = activation};
    const bool in_kernel = on_kernel_path(in.x);
    const Outputs out = in_kernel ? forward_kernel(in) : uses_loops(x) ? forward_cpu(in) : forward_aten(in);
    // Where storage and accumulation share a dtype the rounded sum is the sum that was normalised. The
    // kernels take it for that in bf16, too: one array to keep and to read instead of two.
    const bool keeps_sum = residual.defined() && (in_kernel || form == Form::kCarry ||
                                                  x.scalar_type() == accumulation_type(x.scalar_type()));
    const at::Tensor sum = out.sum.defined() ? at::_unsafe_view(out.sum, x.sizes()) : out.sum;
    if (keeps_sum)
      ctx->save_for_backward({sum, at::Tensor(), gate, value, out.rstd});
    else
      ctx->save_for_backward({x, residual, gate, value, out.rstd});
    ctx->saved_data["sink"] = weight.sink;
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["activation"] = static_cast<int64_t>(activation);
    ctx->saved_data["has_residual"] = residual.defined();
    ctx->set_materialize_grads(false);
    const at::Tensor y = at::_unsafe_view(out.y, x.sizes());  // autograd refuses later changes of a true view
    if (form == Form::kPlain) return {y};
    return {y, sum.defined() ? sum : x};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& value = saved[3];  // [D]
    const int64_t width = value.size(0);
    const Inputs in{.x = as_rows(saved[0], width),
                    .residual = as_rows(saved[1], width),
                    .gate = as_rows(saved[2], width),
                    .weight = value.to(accumulation_type(saved[0].scalar_type())),
                    .eps = ctx->saved_data["eps"].toDouble(),
                    .activation = static_cast<GateActivation>(ctx->saved_data["activation"].toInt())};
    const at::Tensor dsum = gradients.size() > 1 ? as_rows(gradients[1], width) : at::Tensor();
    torch::autograd::variable_list result(9);
    if (!gradients[0].defined() && !dsum.defined()) return result;
    const at::Tensor dy = gradients[0].defined() ? as_rows(gradients[0], width) : at::zeros_like(in.x);
    const at::Tensor sink = ctx->saved_data["sink"].toTensor();
    const Gradients out = on_kernel_path(in.x) ? backward_kernel(in, saved[4], dy, dsum, sink)
                          : uses_loops(in.x)   ? backward_cpu(in, saved[4], dy, dsum)
                                               : backward_aten(in, saved[4], dy, dsum);
    result[0] = out.dx.view(saved[0].sizes());
    if (out.dweight.defined() && (sink.defined() || ctx->needs_input_grad(1)))
      result[1] = deliver_gradient(sink, out.dweight, value.scalar_type());
    if (ctx->saved_data["has_residual"].toBool()) result[2] = result[0];
    if (out.dgate.defined()) result[3] = out.dgate.view(saved[2].sizes());
    return result;
  }
};

torch::autograd::variable_list apply(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& gate,
                                     const Weight& weight, double eps, GateActivation activation, Form form) {
  return RmsNormFunction::apply(x, weight.value, optional_input(residual), optional_input(gate),
                                optional_input(gradient_anchor(weight)), weight, eps, activation, form);
}

void check_inputs(const char* op, const at::Tensor& x, const Weight& weight) {
  if (!x.defined() || x.dim() == 0)
    throw UserError("{}: x: expected a tensor with a last dimension, got none", op);
  check_dtype(op, "x", x, {at::kFloat, at::kBFloat16, at::kDouble});
  check_weight(op, "weight", weight, {x.size(-1)}, {x.scalar_type(), accumulation_type(x.scalar_type())}, x);
}

void check_partner(const char* op, const char* argument, const at::Tensor& partner, const at::Tensor& x) {
  if (!partner.defined() || !partner.sizes().equals(x.sizes()))
    throw UserError("{}: {}: expected the shape of the other input, got {}", op, argument,
                    partner.defined() ? "another one" : "none");
  check_dtype(op, argument, partner, {x.scalar_type()});
  check_same_device(op, argument, partner, x);
}

}  // namespace rms_norm_detail

at::Tensor rms_norm(const at::Tensor& x, const Weight& weight, double eps) {
  rms_norm_detail::check_inputs("rms_norm", x, weight);
  return rms_norm_detail::apply(x, {}, {}, weight, eps, GateActivation::kSwish,
                                rms_norm_detail::Form::kPlain)[0];
}

at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& gate, const Weight& weight, double eps,
                          GateActivation activation) {
  rms_norm_detail::check_inputs("gated_rms_norm", x, weight);
  rms_norm_detail::check_partner("gated_rms_norm", "gate", gate, x);
  return rms_norm_detail::apply(x, {}, gate, weight, eps, activation, rms_norm_detail::Form::kPlain)[0];
}

AddRmsNormOutput add_rms_norm(const at::Tensor& branch, const at::Tensor& residual, const Weight& weight,
                              double eps) {
  rms_norm_detail::check_inputs("add_rms_norm", branch, weight);
  rms_norm_detail::check_partner("add_rms_norm", "residual", residual, branch);
  const auto out = rms_norm_detail::apply(branch, residual, {}, weight, eps, GateActivation::kSwish,
                                          rms_norm_detail::Form::kAdd);
  return {.sum = out[1], .normalized = out[0]};
}

AddRmsNormOutput carry_rms_norm(const at::Tensor& branch, const at::Tensor& residual, const Weight& weight,
                                double eps) {
  rms_norm_detail::check_inputs("carry_rms_norm", residual, weight);
  if (branch.defined()) rms_norm_detail::check_partner("carry_rms_norm", "branch", branch, residual);
  const auto out = rms_norm_detail::apply(residual, branch, {}, weight, eps, GateActivation::kSwish,
                                          rms_norm_detail::Form::kCarry);
  return {.sum = out[1], .normalized = out[0]};
}

}  // namespace osdn::ops
