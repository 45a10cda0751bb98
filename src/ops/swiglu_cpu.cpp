#include "ops/detail/simd_math.h"
#include "ops/detail/swiglu_paths.h"
#include "tensor/torch.h"

namespace osdn::ops::swiglu_detail {
namespace {

constexpr int64_t kRowsPerTask = 16;

template <typename T>
at::Tensor forward_rows(const at::Tensor& gate_up) {
  const int64_t num_rows = gate_up.size(0);
  const int64_t width = gate_up.size(1) / 2;
  const at::Tensor z = at::empty({num_rows, width}, gate_up.options());
  const T* in = gate_up.const_data_ptr<T>();  // [N, 2 * I]
  T* out = z.mutable_data_ptr<T>();           // [N, I]
  at::parallel_for(0, num_rows, kRowsPerTask, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = in + row * 2 * width;
      const T* up = gate + width;
      T* to = out + row * width;
      for (int64_t c = 0; c < width; ++c) to[c] = simd::silu(gate[c]) * up[c];  // (eq. 1)
    }
  });
  return z;
}

template <typename T>
at::Tensor backward_rows(const at::Tensor& gate_up, const at::Tensor& dz) {
  const int64_t num_rows = gate_up.size(0);
  const int64_t width = gate_up.size(1) / 2;
  const at::Tensor dgate_up = at::empty_like(gate_up);
  const T* in = gate_up.const_data_ptr<T>();   // [N, 2 * I]
  const T* upstream = dz.const_data_ptr<T>();  // [N, I]
  T* out = dgate_up.mutable_data_ptr<T>();     // [N, 2 * I]
  at::parallel_for(0, num_rows, kRowsPerTask, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = in + row * 2 * width;
      const T* up = gate + width;
      const T* dy = upstream + row * width;
      T* dgate = out + row * 2 * width;
      T* dup = dgate + width;
      for (int64_t c = 0; c < width; ++c) {
        const T g = gate[c];
        const T s = simd::sigmoid(g);
        dgate[c] = dy[c] * up[c] * s * (T(1) + g * (T(1) - s));  // (eq. 2)
        dup[c] = dy[c] * g * s;                                  // (eq. 3)
      }
    }
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
