#include "ops/linear_cross_entropy.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/detail/dispatch.h"
#include "ops/detail/linear_cross_entropy_paths.h"
#include "ops/linear.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace linear_cross_entropy_detail {

RowLosses row_losses_aten(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor wide = logits.to(accumulation_type(logits.scalar_type()));  // [C, V]
  const at::Tensor ignored = targets.eq(kIgnoreTarget);                        // [C]
  const at::Tensor index = targets.masked_fill(ignored, 0).unsqueeze(1);       // [C, 1]
  RowLosses out;
  out.log_sum_exp = at::logsumexp(wide, {1});                                               // (eq. 1)
  out.loss = (out.log_sum_exp - wide.gather(1, index).squeeze(1)).masked_fill(ignored, 0);  // (eq. 2)
  return out;
}

at::Tensor logit_gradient_aten(const at::Tensor& logits, const at::Tensor& targets,
                               const at::Tensor& log_sum_exp, const at::Tensor& scale) {
  const at::Tensor ignored = targets.eq(kIgnoreTarget).unsqueeze(1);                              // [C, 1]
  const at::Tensor index = targets.unsqueeze(1).masked_fill(ignored, 0);                          // [C, 1]
  const at::Tensor p = (logits.to(log_sum_exp.scalar_type()) - log_sum_exp.unsqueeze(1)).exp_();  // [C, V]
  // One entry a row: no two adds meet.
  p.scatter_add_(1, index, at::full_like(index, -1, p.options()));
  return p.mul_(scale).masked_fill_(ignored, 0).to(logits.scalar_type());  // (eq. 3)
}

namespace {

// Up to this many logits are kept as their gradient between the passes where kernels compute them: 4 GiB in
// bf16. Below it the activations of the model that belong to as many rows take far more.
constexpr int64_t kKeptLogits = int64_t{1} << 31;

// Rows whose logits take at most 64 MB in fp32; on a GPU, where every chunk reads and writes the whole
// gradient of the weight, 0.5 GB in bf16.
int64_t rows_per_chunk(const at::Tensor& x, int64_t vocabulary) {
  const int64_t logits_per_chunk = int64_t{1} << (on_kernel_path(x) ? 28 : 24);
  return std::max<int64_t>(1, logits_per_chunk / std::max<int64_t>(1, vocabulary));
}

// Losses and, without kernels, log-sum-exp of all rows, chunk by chunk: [N] each.
RowLosses all_row_losses(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets) {
  const int64_t num_rows = x.size(0);
  const int64_t step = rows_per_chunk(x, weight.size(0));
  const at::TensorOptions options = x.options().dtype(accumulation_type(x.scalar_type()));
  RowLosses all{.log_sum_exp = at::empty({num_rows}, options), .loss = at::empty({num_rows}, options)};
  for (int64_t begin = 0; begin < num_rows; begin += step) {
    const int64_t count = std::min(step, num_rows - begin);
    const at::Tensor target = targets.narrow(0, begin, count);
    if (on_kernel_path(x)) {
      softmax_kernel(padded_logits(x.narrow(0, begin, count), weight), target,
                     all.loss.narrow(0, begin, count), /*gradient=*/false, {});
      continue;
    }
    const at::Tensor logits = at::mm(x.narrow(0, begin, count), weight.t());  // [C, V]
    const RowLosses part = uses_loops(x) ? row_losses_cpu(logits, target) : row_losses_aten(logits, target);
    all.log_sum_exp.narrow(0, begin, count).copy_(part.log_sum_exp);
    all.loss.narrow(0, begin, count).copy_(part.loss);
  }
  return all;
}

// float64 inside and in row order on CPU, so that the bits do not depend on the number of threads.
at::Tensor sum_of_losses(const at::Tensor& loss) {
  if (!loss.is_cpu()) return at::sum(loss, at::kDouble).to(loss.scalar_type());
  const at::Tensor wide = loss.to(at::kDouble);
  const double* data = wide.const_data_ptr<double>();
  double total = 0;
  for (int64_t i = 0; i < wide.numel(); ++i) total += data[i];
  return at::scalar_tensor(total, loss.options());
}

void check_arguments(const at::Tensor& x, const Weight& weight, const at::Tensor& targets) {
  constexpr const char* kOp = "linear_cross_entropy";
  check_shape(kOp, "x", x, {-1, -1});
  check_dtype(kOp, "x", x, {at::kFloat, at::kBFloat16, at::kDouble});
  check_weight(kOp, "weight", weight, {-1, x.size(1)}, {x.scalar_type()}, x);
  check_shape(kOp, "targets", targets, {x.size(0)});
  check_dtype(kOp, "targets", targets, {at::kLong});
  check_same_device(kOp, "targets", targets, x);
  if (!targets.is_cpu()) return;
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const int64_t vocabulary = weight.value.size(0);
  for (int64_t i = 0; i < targets.numel(); ++i)
    if (target[i] != kIgnoreTarget && (target[i] < 0 || target[i] >= vocabulary))
      throw UserError("{}: targets: expected values in [0, {}) or {} (ignored), got {} in row {}", kOp,
                      vocabulary, kIgnoreTarget, target[i], i);
}

// One chunk of the backward: (eq. 3) from the logits computed again.
at::Tensor chunk_gradient(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                          const at::Tensor& log_sum_exp, const at::Tensor& scale) {
  if (on_kernel_path(x)) {
    const at::Tensor logits = padded_logits(x, weight);
    softmax_kernel(logits, targets, {}, /*gradient=*/true, scale);
    return logits;
  }
  const at::Tensor logits = at::mm(x, weight.t());  // [C, V]
  return uses_loops(x) ? logit_gradient_cpu(logits, targets, log_sum_exp, scale)
                       : logit_gradient_aten(logits, targets, log_sum_exp, scale);
}

class LinearCrossEntropyFunction : public torch::autograd::Function<LinearCrossEntropyFunction> {
 public:
  // keep: a backward may follow
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& value, const at::Tensor& targets,
                            const std::optional<at::Tensor>& /*anchor*/, const Weight& weight, bool keep) {
    ctx->saved_data["sink"] = weight.sink;
    if (keep && on_kernel_path(x) && x.size(0) * value.size(0) <= kKeptLogits) {
      const at::Tensor logits = padded_logits(x, value);  // [N, V]
      const at::Tensor loss = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
      softmax_kernel(logits, targets, loss, /*gradient=*/true, {});
      ctx->save_for_backward({x, value, targets, at::Tensor(), logits});
      return sum_of_losses(loss);
    }
    const RowLosses rows = all_row_losses(x, value, targets);
    ctx->save_for_backward({x, value, targets, rows.log_sum_exp, at::Tensor()});
    return sum_of_losses(rows.loss);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];            // [N, D]
    const at::Tensor& value = saved[1];        // [V, D]
    const at::Tensor& targets = saved[2];      // [N]
    const at::Tensor& log_sum_exp = saved[3];  // [N]
    const at::Tensor sink = ctx->saved_data["sink"].toTensor();
    const at::Tensor& scale = gradients[0];
    const bool needs_x = ctx->needs_input_grad(0);
    const bool needs_weight = sink.defined() || ctx->needs_input_grad(1);
    if (saved[4].defined()) return from_kept(x, value, saved[4], sink, scale, needs_x, needs_weight);
    at::Tensor dw = sink;  // [V, D]
    if (needs_weight && !sink.defined())
      dw = at::zeros(value.sizes(), value.options().dtype(accumulation_type(value.scalar_type())));
    at::Tensor dx = needs_x ? at::empty_like(x, at::MemoryFormat::Contiguous) : at::Tensor();  // [N, D]
    const int64_t step = rows_per_chunk(x, value.size(0));
    for (int64_t begin = 0; begin < x.size(0); begin += step) {
      const int64_t count = std::min(step, x.size(0) - begin);
      const at::Tensor part = x.narrow(0, begin, count);
      const at::Tensor lse = log_sum_exp.defined() ? log_sum_exp.narrow(0, begin, count) : at::Tensor();
      const at::Tensor dlogits =
          chunk_gradient(part, value, targets.narrow(0, begin, count), lse, scale);  // [C, V]
      if (needs_x) {
        at::Tensor rows = dx.narrow(0, begin, count);
        at::mm_out(rows, dlogits, value);  // (eq. 4)
      }
      if (needs_weight) add_outer_product(dw, dlogits, part);  // (eq. 5)
    }
    if (sink.defined() || !needs_weight) return {dx, {}, {}, {}, {}, {}};
    return {dx, dw.to(value.scalar_type()), {}, {}, {}, {}};
  }

 private:
  // The kept gradient [N, V] is that of a scale of 1, which forward could not know: the products are scaled
  // before they are rounded.
  static torch::autograd::variable_list from_kept(const at::Tensor& x, const at::Tensor& value,
                                                  const at::Tensor& dlogits, const at::Tensor& sink,
                                                  const at::Tensor& scale, bool needs_x, bool needs_weight) {
    const auto product = [](const at::Tensor& a, const at::Tensor& b) {  // in fp32
      return a.scalar_type() == at::kFloat ? at::mm(a, b) : at::mm(a, b, at::kFloat);
    };
    torch::autograd::variable_list result(6);
    if (needs_x) {
      result[0] = at::empty(x.sizes(), x.options());
      at::mul_out(result[0], product(dlogits, value), scale);  // (eq. 4)
    }
    if (!needs_weight) return result;
    const at::Tensor dw = product(dlogits.t(), x);  // (eq. 5)
    if (sink.defined())
      at::Tensor(sink).addcmul_(dw, scale);
    else
      result[1] = (dw * scale).to(value.scalar_type());
    return result;
  }
};

}  // namespace
}  // namespace linear_cross_entropy_detail

at::Tensor linear_cross_entropy(const at::Tensor& x, const Weight& weight, const at::Tensor& targets) {
  const at::Tensor ids = targets.defined() ? targets.contiguous() : targets;
  linear_cross_entropy_detail::check_arguments(x, weight, ids);
  const bool keep = at::GradMode::is_enabled() &&
                    (weight.sink.defined() || x.requires_grad() || weight.value.requires_grad());
  return linear_cross_entropy_detail::LinearCrossEntropyFunction::apply(
      x, weight.value, ids, optional_input(gradient_anchor(weight)), weight, keep);
}

at::Tensor linear_cross_entropy_rows(const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = targets.defined() ? targets.contiguous() : targets;
  linear_cross_entropy_detail::check_arguments(x, {.value = weight, .sink = {}}, ids);
  return linear_cross_entropy_detail::all_row_losses(x, weight, ids).loss;
}

}  // namespace osdn::ops
