#include "ops/linear.h"

#include "base/error.h"
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

// One weight for several that lie one behind the other; undefined where they do not.
at::Tensor adjacent_union(const std::vector<at::Tensor>& parts) {
  int64_t rows = 0;
  const char* end = static_cast<const char*>(parts.front().const_data_ptr());
  for (const at::Tensor& part : parts) {
    if (!part.is_contiguous() || part.const_data_ptr() != end) return {};
    if (part.scalar_type() != parts.front().scalar_type()) return {};
    end += part.nbytes();
    rows += part.size(0);
  }
  // The deleter's copies keep the memory alive as long as the union.
  return at::from_blob(
      const_cast<void*>(parts.front().const_data_ptr()), {rows, parts.front().size(1)}, [parts](void*) {},
      parts.front().options());
}

Weight adjacent_union(const std::vector<Weight>& weights) {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> sinks;
  for (const Weight& weight : weights) {
    // A gradient that autograd must hand to each value cannot pass through memory that aliases them.
    if (weight.value.requires_grad()) return {};
    values.push_back(weight.value);
    if (weight.sink.defined()) sinks.push_back(weight.sink);
  }
  if (!sinks.empty() && sinks.size() != values.size()) return {};
  Weight joined{.value = adjacent_union(values), .sink = {}};
  if (!joined.value.defined() || sinks.empty()) return joined;
  joined.sink = adjacent_union(sinks);
  return joined.sink.defined() ? joined : Weight{};
}

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
  const at::Tensor anchor = gradient_anchor(weight.sink.defined() ? weight : bias);
  return LinearFunction::apply(x, weight.value, optional_input(bias.value), optional_input(anchor), weight,
                               bias);
}

at::Tensor linear_group(const at::Tensor& x, const std::vector<Weight>& weights) {
  check_shape("linear", "x", x, {-1, -1});
  if (weights.empty()) throw UserError("linear: weights: expected at least one weight, got none");
  for (const Weight& weight : weights)
    check_weight("linear", "weights", weight, {-1, x.size(1)}, {x.scalar_type()}, x);
  const Weight joined = adjacent_union(weights);
  if (joined.defined()) return linear(x, joined);
  std::vector<at::Tensor> columns;
  columns.reserve(weights.size());
  for (const Weight& weight : weights) columns.push_back(linear(x, weight));
  return at::cat(columns, 1);
}

}  // namespace osdn::ops
