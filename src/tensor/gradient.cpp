#include "tensor/gradient.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "tensor/check.h"
#include "tensor/torch.h"

namespace osdn {
namespace {

constexpr int64_t kRowsPerPartialSum = 256;

template <typename T>
void add_rows_in_order(const T* rows, int64_t begin, int64_t end, int64_t width, T* sum) {
  std::fill(sum, sum + width, T(0));
  for (int64_t row = begin; row < end; ++row) {
    const T* x = rows + row * width;
    for (int64_t c = 0; c < width; ++c) sum[c] += x[c];
  }
}

template <typename T>
void sum_rows_cpu(const T* rows, int64_t num_rows, int64_t width, T* sum) {
  const int64_t blocks = (num_rows + kRowsPerPartialSum - 1) / kRowsPerPartialSum;
  std::vector<T> partial(static_cast<size_t>(blocks * width));  // [blocks, D]
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kRowsPerPartialSum;
      const int64_t end = std::min(num_rows, begin + kRowsPerPartialSum);
      add_rows_in_order(rows, begin, end, width, partial.data() + block * width);
    }
  });
  add_rows_in_order(partial.data(), 0, blocks, width, sum);
}

}  // namespace

at::ScalarType accumulation_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

void check_weight(std::string_view op, std::string_view argument, const Weight& weight,
                  std::initializer_list<int64_t> shape, std::initializer_list<at::ScalarType> allowed,
                  const at::Tensor& reference) {
  check_shape(op, argument, weight.value, shape);
  check_dtype(op, argument, weight.value, allowed);
  check_same_device(op, argument, weight.value, reference);
  if (!weight.sink.defined()) return;
  if (!weight.sink.sizes().equals(weight.value.sizes()) || !weight.sink.is_contiguous())
    throw UserError("{}: {}: the gradient sink must be contiguous and have the shape of the weight", op,
                    argument);
  check_dtype(op, argument, weight.sink, {accumulation_type(weight.value.scalar_type())});
  check_same_device(op, argument, weight.sink, reference);
}

at::Tensor gradient_anchor(const Weight& weight) {
  if (!weight.sink.defined()) return {};
  return at::empty({0}, weight.sink.options().dtype(at::kFloat)).set_requires_grad(true);
}

std::optional<at::Tensor> optional_input(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

at::Tensor deliver_gradient(const at::Tensor& sink, const at::Tensor& gradient, at::ScalarType value_type) {
  if (!sink.defined()) return gradient.to(value_type);
  sink.add_(gradient.view_as(sink));
  return {};
}

at::Tensor sum_rows(const at::Tensor& rows) {
  const at::ScalarType type = accumulation_type(rows.scalar_type());
  if (!rows.is_cpu()) return at::sum(rows, {0}, false, type);
  const at::Tensor x = rows.to(type).contiguous();       // [N, D]
  at::Tensor sum = at::empty({x.size(1)}, x.options());  // [D]
  if (type == at::kDouble)
    sum_rows_cpu(x.const_data_ptr<double>(), x.size(0), x.size(1), sum.mutable_data_ptr<double>());
  else
    sum_rows_cpu(x.const_data_ptr<float>(), x.size(0), x.size(1), sum.mutable_data_ptr<float>());
  return sum;
}

}  // namespace osdn
