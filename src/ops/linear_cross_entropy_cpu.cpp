#include <algorithm>
#include <cmath>
#include <limits>

#include "base/vector_code.h"
#include "ops/detail/linear_cross_entropy_paths.h"
#include "ops/detail/simd_math.h"
#include "ops/linear_cross_entropy.h"
#include "tensor/torch.h"

namespace osdn::ops::linear_cross_entropy_detail {
namespace {

constexpr int64_t kRowsPerTask = 4;

template <typename T>
[[gnu::always_inline]] inline T maximum(const T* row, int64_t n) {
  T lanes[simd::kLanes];
  std::fill(lanes, lanes + simd::kLanes, -std::numeric_limits<T>::infinity());
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes)
    for (int64_t lane = 0; lane < simd::kLanes; ++lane) lanes[lane] = std::max(lanes[lane], row[i + lane]);
  for (; i < n; ++i) lanes[0] = std::max(lanes[0], row[i]);
  return *std::max_element(lanes, lanes + simd::kLanes);
}

template <typename T>
RowLosses losses_of_rows(const at::Tensor& logits, const at::Tensor& targets) {
  const int64_t num_rows = logits.size(0);
  const int64_t width = logits.size(1);
  RowLosses out{.log_sum_exp = at::empty({num_rows}, logits.options()),
                .loss = at::empty({num_rows}, logits.options())};
  const T* data = logits.const_data_ptr<T>();                 // [C, V]
  const int64_t* target = targets.const_data_ptr<int64_t>();  // [C]
  T* log_sum_exp = out.log_sum_exp.mutable_data_ptr<T>();
  T* loss = out.loss.mutable_data_ptr<T>();
  at::parallel_for(0, num_rows, kRowsPerTask, [=](int64_t begin, int64_t end) {
    run_vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = data + row * width;
        const T top = maximum(x, width);
        const T sum = simd::sum<T>(width, [=](int64_t c) { return simd::exp(x[c] - top); });
        log_sum_exp[row] = top + std::log(sum);                                               // (eq. 1)
        loss[row] = target[row] == kIgnoreTarget ? T(0) : log_sum_exp[row] - x[target[row]];  // (eq. 2)
      }
    });
  });
  return out;
}

template <typename T>
[[gnu::always_inline]] inline void gradient_of_row(int64_t width, T log_sum_exp, T scale, T* __restrict x) {
  for (int64_t c = 0; c < width; ++c) x[c] = scale * simd::exp(x[c] - log_sum_exp);
}

template <typename T>
void gradient_of_rows(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& log_sum_exps,
                      T scale) {
  const int64_t width = logits.size(1);
  T* data = logits.mutable_data_ptr<T>();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const T* log_sum_exp = log_sum_exps.const_data_ptr<T>();
  at::parallel_for(0, logits.size(0), kRowsPerTask, [=](int64_t begin, int64_t end) {
    run_vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = begin; row < end; ++row) {
        T* x = data + row * width;
        if (target[row] == kIgnoreTarget) {
          std::fill(x, x + width, T(0));
          continue;
        }
        gradient_of_row(width, log_sum_exp[row], scale, x);  // (eq. 3)
        x[target[row]] -= scale;
      }
    });
  });
}

}  // namespace

RowLosses row_losses_cpu(const at::Tensor& logits, const at::Tensor& targets) {
  return logits.scalar_type() == at::kDouble ? losses_of_rows<double>(logits, targets)
                                             : losses_of_rows<float>(logits, targets);
}

at::Tensor logit_gradient_cpu(const at::Tensor& logits, const at::Tensor& targets,
                              const at::Tensor& log_sum_exp, const at::Tensor& scale) {
  if (logits.scalar_type() == at::kDouble)
    gradient_of_rows<double>(logits, targets, log_sum_exp, scale.item<double>());
  else
    gradient_of_rows<float>(logits, targets, log_sum_exp, scale.item<float>());
  return logits;
}

}  // namespace osdn::ops::linear_cross_entropy_detail
