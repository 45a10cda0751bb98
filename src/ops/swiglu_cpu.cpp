#include "base/vector_code.h"
#include "ops/detail/simd_math.h"
#include "ops/detail/swiglu_paths.h"
#include "tensor/torch.h"

namespace osdn::ops::swiglu_detail {
namespace {

constexpr int64_t kRowsPerTask = 16;

template <typename T>
[[gnu::always_inline]] inline void forward_row(int64_t width, const T* __restrict gate,
                                               const T* __restrict up, T* __restrict z) {
  for (int64_t c = 0; c < width; ++c) z[c] = simd::silu(gate[c]) * up[c];  // (eq. 1)
}

template <typename T>
[[gnu::always_inline]] inline void backward_row(int64_t width, const T* __restrict gate,
                                                const T* __restrict up, const T* __restrict dz,
                                                T* __restrict dgate, T* __restrict dup) {
  for (int64_t c = 0; c < width; ++c) {
    const T g = gate[c];
    const T s = simd::sigmoid(g);
    dgate[c] = dz[c] * up[c] * s * (T(1) + g * (T(1) - s));  // (eq. 2)
    dup[c] = dz[c] * g * s;                                  // (eq. 3)
  }
}

template <typename T>
at::Tensor forward_rows(const at::Tensor& gate_up) {
  const int64_t num_rows = gate_up.size(0);
  const int64_t width = gate_up.size(1) / 2;
  at::Tensor z = at::empty({num_rows, width}, gate_up.options());
  const T* in = gate_up.const_data_ptr<T>();  // [N, 2 * I]
  T* out = z.mutable_data_ptr<T>();           // [N, I]
  at::parallel_for(0, num_rows, kRowsPerTask, [=](int64_t begin, int64_t end) {
    run_vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = begin; row < end; ++row) {
        const T* gate = in + row * 2 * width;
        forward_row(width, gate, gate + width, out + row * width);
      }
    });
  });
  return z;
}

template <typename T>
at::Tensor backward_rows(const at::Tensor& gate_up, const at::Tensor& dz) {
  const int64_t num_rows = gate_up.size(0);
  const int64_t width = gate_up.size(1) / 2;
  at::Tensor dgate_up = at::empty_like(gate_up);
  const T* in = gate_up.const_data_ptr<T>();   // [N, 2 * I]
  const T* upstream = dz.const_data_ptr<T>();  // [N, I]
  T* out = dgate_up.mutable_data_ptr<T>();     // [N, 2 * I]
  at::parallel_for(0, num_rows, kRowsPerTask, [=](int64_t begin, int64_t end) {
    run_vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = begin; row < end; ++row) {
        const T* gate = in + row * 2 * width;
        T* dgate = out + row * 2 * width;
        backward_row(width, gate, gate + width, upstream + row * width, dgate, dgate + width);
      }
    });
  });
  return dgate_up;
}

}  // namespace

at::Tensor forward_cpu(const at::Tensor& gate_up) {
  return gate_up.scalar_type() == at::kDouble ? forward_rows<double>(gate_up) : forward_rows<float>(gate_up);
}

at::Tensor backward_cpu(const at::Tensor& gate_up, const at::Tensor& dz) {
  return gate_up.scalar_type() == at::kDouble ? backward_rows<double>(gate_up, dz)
                                              : backward_rows<float>(gate_up, dz);
}

}  // namespace osdn::ops::swiglu_detail
