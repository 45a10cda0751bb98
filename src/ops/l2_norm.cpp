#include "ops/l2_norm.h"

#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/detail/simd_math.h"
#include "ops/linear.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace l2_norm_detail {

constexpr int64_t kRowsPerTask = 256;
// x, y [rows, width]; rstd [rows]                                                                        (eq.
// 1)
template <typename T>
void forward_cpu(const T* x, T* y, T* rstd, int64_t rows, int64_t width) {
  at::parallel_for(0, rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = x + row * width;
      T* to = y + row * width;
      const T squares = simd::sum<T>(width, [from](int64_t i) { return from[i] * from[i]; });
      const T inverse = T(1) / std::sqrt(squares + static_cast<T>(kL2NormEps));
      for (int64_t i = 0; i < width; ++i) to[i] = from[i] * inverse;
      rstd[row] = inverse;
    }
  });
}

// dy, y, dx [rows, width]; rstd [rows]                                                                   (eq.
// 2)
template <typename T>
void backward_cpu(const T* dy, const T* y, const T* rstd, T* dx, int64_t rows, int64_t width) {
  at::parallel_for(0, rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* up = dy + row * width;
      const T* unit = y + row * width;
      T* to = dx + row * width;
      const T along = simd::sum<T>(width, [up, unit](int64_t i) { return up[i] * unit[i]; });
      for (int64_t i = 0; i < width; ++i) to[i] = rstd[row] * (up[i] - along * unit[i]);
    }
  });
}

class L2NormFunction : public torch::autograd::Function<L2NormFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    L2NormForward result = l2_norm_forward(x);
    ctx->save_for_backward({result.y, result.rstd});
    return result.y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {l2_norm_backward(grads[0], saved[0], saved[1])};
  }
};

}  // namespace l2_norm_detail

at::Tensor l2_norm(const at::Tensor& x) {
  check_dtype("l2_norm", "x", x, {at::kFloat, at::kBFloat16, at::kDouble});
  return l2_norm_detail::L2NormFunction::apply(x);
}

L2NormForward l2_norm_forward(const at::Tensor& x) {
  OSDN_ASSERT(x.dim() > 0, "l2_norm of a scalar");
  const at::Tensor wide = x.to(accumulation_type(x.scalar_type()));  // [..., D]
  if (!x.is_cpu()) {
    const at::Tensor rstd = at::rsqrt(sum_last(wide.square()).add_(kL2NormEps));  // [..., 1]
    return {.y = (wide * rstd).to(x.scalar_type()), .rstd = rstd};
  }
  const at::Tensor from = wide.contiguous();
  const at::Tensor y = at::empty(x.sizes(), from.options());  // [..., D]
  std::vector<int64_t> shape = x.sizes().vec();
  const int64_t width = shape.back();
  shape.back() = 1;
  const at::Tensor rstd = at::empty(shape, from.options());  // [..., 1]
  if (from.scalar_type() == at::kDouble)
    l2_norm_detail::forward_cpu(from.const_data_ptr<double>(), y.mutable_data_ptr<double>(),
                                rstd.mutable_data_ptr<double>(), rstd.numel(), width);
  else
    l2_norm_detail::forward_cpu(from.const_data_ptr<float>(), y.mutable_data_ptr<float>(),
                                rstd.mutable_data_ptr<float>(), rstd.numel(), width);
  return {.y = y.to(x.scalar_type()), .rstd = rstd};
}

at::Tensor l2_norm_backward(const at::Tensor& dy, const at::Tensor& y, const at::Tensor& rstd) {
  const at::ScalarType type = accumulation_type(y.scalar_type());
  const at::Tensor up = dy.to(type);   // [..., D]
  const at::Tensor unit = y.to(type);  // [..., D]
  if (!y.is_cpu()) return ((up - (up * unit).sum(-1, true) * unit) * rstd).to(y.scalar_type());
  const at::Tensor from = up.contiguous();
  const at::Tensor unit_rows = unit.contiguous();
  const at::Tensor dx = at::empty(y.sizes(), from.options());  // [..., D]
  const int64_t width = y.size(-1);
  if (type == at::kDouble)
    l2_norm_detail::backward_cpu(from.const_data_ptr<double>(), unit_rows.const_data_ptr<double>(),
                                 rstd.const_data_ptr<double>(), dx.mutable_data_ptr<double>(), rstd.numel(),
                                 width);
  else
    l2_norm_detail::backward_cpu(from.const_data_ptr<float>(), unit_rows.const_data_ptr<float>(),
                                 rstd.const_data_ptr<float>(), dx.mutable_data_ptr<float>(), rstd.numel(),
                                 width);
  return dx.to(y.scalar_type());
}

}  // namespace osdn::ops
