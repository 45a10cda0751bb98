#include "ops/linear.h"

#include <vector>

#include "base/error.h"
#include "ops/detail/dispatch.h"
#include "ops/detail/linear_paths.h"
#include "ops/sequences.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace {

// N: rows; D_in, D_out: widths of input and output.
class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& value, const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& /*anchor*/, const Weight& weight,
                            const Weight& bias_weight) {
    ctx->save_for_backward({x, value});
    ctx->saved_data["sink"] = weight.sink;
    ctx->saved_data["bias_sink"] = bias_weight.sink;
    ctx->saved_data["has_bias"] = bias.has_value();
    if (bias) ctx->saved_data["bias_type"] = static_cast<int64_t>(bias->scalar_type());
    const at::Tensor w = value.t();  // [D_in, D_out]
    if (bias) return at::addmm(bias->to(x.scalar_type()), x, w);
    return at::mm(x, w);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];                   // [N, D_in]
    const at::Tensor& value = saved[1];               // [D_out, D_in]
    const at::Tensor dy = gradients[0].contiguous();  // [N, D_out]
    const at::Tensor sink = ctx->saved_data["sink"].toTensor();
    const at::Tensor bias_sink = ctx->saved_data["bias_sink"].toTensor();
    at::Tensor dx;
    at::Tensor dw;
    at::Tensor db;
    if (ctx->needs_input_grad(0)) dx = at::mm(dy, value);  // (eq. 2)
    if (sink.defined()) {
      add_outer_product(sink, dy, x);
    } else if (ctx->needs_input_grad(1)) {
      dw = at::mm(dy.t(), x);  // (eq. 3)
    }
    if (ctx->saved_data["has_bias"].toBool() && (bias_sink.defined() || ctx->needs_input_grad(2)))
      db = deliver_gradient(bias_sink, sum_rows(dy),
                            static_cast<at::ScalarType>(ctx->saved_data["bias_type"].toInt()));  // (eq. 4)
    return {dx, dw, db, {}, {}, {}};
  }
};

}  // namespace

void add_outer_product(const at::Tensor& sink, const at::Tensor& dy, const at::Tensor& x) {
  if (dy.scalar_type() == sink.scalar_type()) {
    sink.addmm_(dy.t(), x);
  } else if (dy.is_cuda()) {
    at::Tensor out = sink;
    at::addmm_out(out, sink, dy.t(), x, at::kFloat);
  } else {
    // Cast the factors, not the product: a bf16 product would be rounded before it is added.
    sink.addmm_(dy.to(sink.scalar_type()).t(), x.to(sink.scalar_type()));
  }
}

at::Tensor linear(const at::Tensor& x, const Weight& weight, const Weight& bias) {
  check_shape("linear", "x", x, {-1, -1});
  check_dtype("linear", "x", x, {at::kFloat, at::kBFloat16, at::kDouble});
  check_weight("linear", "weight", weight, {-1, x.size(1)}, {x.scalar_type()}, x);
  if (bias.defined())
    check_weight("linear", "bias", bias, {weight.value.size(0)},
                 {x.scalar_type(), accumulation_type(x.scalar_type())}, x);
  // Whether anybody could want a gradient, whatever the mode is now: training and its repetitions in backward
  // must take one and the same path.
  const bool differentiable = weight.sink.defined() || bias.sink.defined() || x.requires_grad() ||
                              weight.value.requires_grad() || (bias.defined() && bias.value.requires_grad());
  if (!differentiable && uses_loops(x)) return linear_detail::forward_cpu(x, weight.value, bias.value);
  if (SequencesApart::holds_for(x) && linear_detail::on_kernel_path(x))
    return linear_detail::forward_kernel(x, weight.value, bias.value);
  const at::Tensor anchor = gradient_anchor(weight.sink.defined() ? weight : bias);
  return LinearFunction::apply(x, weight.value, optional_input(bias.value), optional_input(anchor), weight,
                               bias);
}

at::Tensor sum_last(const at::Tensor& x) {
  if (!SequencesApart::holds_for(x) || !linear_detail::on_kernel_path(x)) return x.sum(-1, /*keepdim=*/true);
  const int64_t width = x.size(-1);
  const at::Tensor sums =
      linear_detail::forward_kernel(x.reshape({-1, width}), at::ones({1, width}, x.options()), {});
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = 1;
  return sums.view(shape);
}

}  // namespace osdn::ops
