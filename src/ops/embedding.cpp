#include "ops/embedding.h"

#include <algorithm>

#include "base/error.h"
#include "ops/detail/embedding_paths.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace embedding_detail {

// N: tokens; V: rows of the table; D: width.

// Every column is summed in token order by one thread, so the bits do not depend on the number of threads.
template <typename T>
void add_rows_cpu(const int64_t* ids, const T* dy, int64_t num_tokens, int64_t width, T* table) {
  constexpr int64_t kColumnsPerTask = 64;
  const int64_t tasks = (width + kColumnsPerTask - 1) / kColumnsPerTask;
  at::parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kColumnsPerTask;
    const int64_t end = std::min(width, last * kColumnsPerTask);
    for (int64_t n = 0; n < num_tokens; ++n) {
      const T* from = dy + n * width;
      T* to = table + ids[n] * width;
      for (int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

void add_rows(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& gradient) {
  if (on_kernel_path(table, gradient)) {
    add_rows_kernel(table, ids, gradient);
    return;
  }
  const at::Tensor dy = gradient.to(table.scalar_type()).contiguous();  // [N, D]
  if (!table.is_cpu()) {
    // On CUDA an accumulating index_put sorts the ids (stable) and adds equal ones in order: no atomics.
    table.index_put_({ids}, dy, /*accumulate=*/true);
    return;
  }
  const at::Tensor tokens = ids.contiguous();
  const int64_t* id = tokens.const_data_ptr<int64_t>();
  if (table.scalar_type() == at::kDouble)
    add_rows_cpu(id, dy.const_data_ptr<double>(), dy.size(0), dy.size(1), table.mutable_data_ptr<double>());
  else
    add_rows_cpu(id, dy.const_data_ptr<float>(), dy.size(0), dy.size(1), table.mutable_data_ptr<float>());
}

void check_ids(const at::Tensor& ids, int64_t num_rows) {
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const int64_t low = ids.min().item<int64_t>();
  const int64_t high = ids.max().item<int64_t>();
  if (low < 0 || high >= num_rows)
    throw UserError(
        "embedding: ids: expected values in [0, {}), got {} (does the tokenizer belong to the model?)",
        num_rows, low < 0 ? low : high);
}

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& ids,
                            const at::Tensor& value, const std::optional<at::Tensor>& /*anchor*/,
                            const Weight& weight) {
    ctx->save_for_backward({ids});
    ctx->saved_data["sink"] = weight.sink;
    ctx->saved_data["num_rows"] = value.size(0);
    return value.index_select(0, ids);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor ids = ctx->get_saved_variables()[0];  // [N]
    const at::Tensor& dy = gradients[0];                   // [N, D]
    const at::Tensor sink = ctx->saved_data["sink"].toTensor();
    if (sink.defined()) {
      add_rows(sink, ids, dy);
      return {{}, {}, {}, {}};
    }
    const at::Tensor dense = at::zeros({ctx->saved_data["num_rows"].toInt(), dy.size(1)},
                                       dy.options().dtype(accumulation_type(dy.scalar_type())));
    add_rows(dense, ids, dy);
    return {{}, dense.to(dy.scalar_type()), {}, {}};
  }
};

}  // namespace embedding_detail

at::Tensor embedding(const at::Tensor& ids, const Weight& weight) {
  check_shape("embedding", "ids", ids, {-1});
  check_dtype("embedding", "ids", ids, {at::kLong});
  check_weight("embedding", "weight", weight, {-1, -1}, {at::kFloat, at::kBFloat16, at::kDouble}, ids);
  embedding_detail::check_ids(ids, weight.value.size(0));
  return embedding_detail::EmbeddingFunction::apply(ids, weight.value,
                                                    optional_input(gradient_anchor(weight)), weight);
}

}  // namespace osdn::ops
