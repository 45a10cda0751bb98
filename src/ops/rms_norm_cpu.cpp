#include <algorithm>
#include <cmath>
#include <vector>

#include "base/vector_code.h"
#include "ops/detail/rms_norm_paths.h"
#include "ops/detail/simd_math.h"
#include "tensor/torch.h"

namespace osdn::ops::rms_norm_detail {
namespace {

// The rows whose share of the weight gradient one task sums: fixed, so that the bits do not depend on the
// number of threads.
constexpr int64_t kRowsPerTask = 256;

template <typename T>
const T* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

// One kind per instantiation, or the choice inside the loop would keep it from being vectorised.
template <GateActivation kind, typename T>
[[gnu::always_inline]] inline void apply_gate(int64_t width, const T* __restrict gate, T* __restrict y) {
  for (int64_t c = 0; c < width; ++c)
    y[c] *= kind == GateActivation::kSwish ? simd::silu(gate[c]) : simd::sigmoid(gate[c]);
}

// dn = dy act(g), dg = dy n act'(g) with n = x rstd w (eq. 5, 6).
template <GateActivation kind, typename T>
[[gnu::always_inline]] inline void gate_backward(int64_t width, const T* __restrict gate,
                                                 const T* __restrict dy, const T* __restrict x, T rstd,
                                                 const T* __restrict weight, T* __restrict dn,
                                                 T* __restrict dgate) {
  for (int64_t c = 0; c < width; ++c) {
    const T g = gate[c];
    const T s = simd::sigmoid(g);
    const T value = kind == GateActivation::kSwish ? g * s : s;
    const T slope = kind == GateActivation::kSwish ? s * (T(1) + g * (T(1) - s)) : s * (T(1) - s);
    dn[c] = dy[c] * value;
    dgate[c] = dy[c] * x[c] * rstd * weight[c] * slope;
  }
}

template <typename T>
Outputs forward_rows(const Inputs& in) {
  const int64_t num_rows = in.x.size(0);
  const int64_t width = in.x.size(1);
  Outputs out;
  out.y = at::empty_like(in.x);
  out.rstd = at::empty({num_rows}, in.x.options());
  if (in.residual.defined()) out.sum = at::empty_like(in.x);
  const T* x = in.x.const_data_ptr<T>();             // [R, D]
  const T* residual = data_or_null<T>(in.residual);  // [R, D]
  const T* gate = data_or_null<T>(in.gate);          // [R, D]
  const T* weight = in.weight.const_data_ptr<T>();   // [D]
  T* y = out.y.mutable_data_ptr<T>();                // [R, D]
  T* rstd = out.rstd.mutable_data_ptr<T>();          // [R]
  T* sum = residual ? out.sum.mutable_data_ptr<T>() : nullptr;
  at::parallel_for(0, num_rows, 64, [&](int64_t begin, int64_t end) {
    run_vectorized([&]() __attribute__((always_inline)) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * width;
        const T* z = x + at;
        if (residual) {
          T* to = sum + at;
          for (int64_t c = 0; c < width; ++c) to[c] = x[at + c] + residual[at + c];
          z = to;
        }
        const T squares = simd::sum<T>(width, [z](int64_t c) { return z[c] * z[c]; });
        const T r = T(1) / std::sqrt(squares / static_cast<T>(width) + static_cast<T>(in.eps));  // (eq. 1)
        rstd[row] = r;
        T* to = y + at;
        for (int64_t c = 0; c < width; ++c) to[c] = z[c] * r * weight[c];  // (eq. 2)
        if (gate && in.activation == GateActivation::kSwish)
          apply_gate<GateActivation::kSwish>(width, gate + at, to);
        if (gate && in.activation == GateActivation::kSigmoid)
          apply_gate<GateActivation::kSigmoid>(width, gate + at, to);
      }
    });
  });
  return out;
}

template <typename T>
Gradients backward_rows(const Inputs& in, const at::Tensor& rstd_of_rows, const at::Tensor& upstream,
                        const at::Tensor& dsum) {
  const int64_t num_rows = in.x.size(0);
  const int64_t width = in.x.size(1);
  const int64_t tasks = (num_rows + kRowsPerTask - 1) / kRowsPerTask;
  Gradients out;
  out.dx = at::empty_like(in.x);
  if (in.gate.defined()) out.dgate = at::empty_like(in.x);
  const at::Tensor partial = at::zeros({tasks, width}, in.x.options());
  const T* x = in.x.const_data_ptr<T>();             // [R, D]
  const T* gate = data_or_null<T>(in.gate);          // [R, D]
  const T* weight = in.weight.const_data_ptr<T>();   // [D]
  const T* rstd = rstd_of_rows.const_data_ptr<T>();  // [R]
  const T* dy = upstream.const_data_ptr<T>();        // [R, D]
  const T* added = data_or_null<T>(dsum);            // [R, D]
  T* dx = out.dx.mutable_data_ptr<T>();              // [R, D]
  T* dgate = gate ? out.dgate.mutable_data_ptr<T>() : nullptr;
  T* dweight = partial.mutable_data_ptr<T>();  // [tasks, D]
  at::parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
    run_vectorized([&]() __attribute__((always_inline)) {
      for (int64_t task = first; task < last; ++task) {
        T* dw = dweight + task * width;
        for (int64_t row = task * kRowsPerTask; row < std::min(num_rows, (task + 1) * kRowsPerTask); ++row) {
          const int64_t at = row * width;
          const T r = rstd[row];
          const T* z = x + at;
          const T* dn = dy + at;
          T* to = dx + at;
          if (gate) {
            if (in.activation == GateActivation::kSwish)
              gate_backward<GateActivation::kSwish>(width, gate + at, dy + at, z, r, weight, to, dgate + at);
            else
              gate_backward<GateActivation::kSigmoid>(width, gate + at, dy + at, z, r, weight, to,
                                                      dgate + at);
            dn = to;
          }
          const T dot = simd::sum<T>(width, [=](int64_t c) { return weight[c] * dn[c] * z[c]; });
          const T mean = dot * r * r / static_cast<T>(width);
          for (int64_t c = 0; c < width; ++c) dw[c] += dn[c] * z[c] * r;                      // (eq. 4)
          for (int64_t c = 0; c < width; ++c) to[c] = r * (weight[c] * dn[c] - z[c] * mean);  // (eq. 3)
          if (added)
            for (int64_t c = 0; c < width; ++c) to[c] += added[at + c];
        }
      }
    });
  });
  out.dweight = at::zeros({width}, in.x.options());
  T* total = out.dweight.mutable_data_ptr<T>();
  for (int64_t task = 0; task < tasks; ++task)
    for (int64_t c = 0; c < width; ++c) total[c] += dweight[task * width + c];
  return out;
}

}  // namespace

Outputs forward_cpu(const Inputs& inputs) {
  return inputs.x.scalar_type() == at::kDouble ? forward_rows<double>(inputs) : forward_rows<float>(inputs);
}

Gradients backward_cpu(const Inputs& inputs, const at::Tensor& rstd, const at::Tensor& dy,
                       const at::Tensor& dsum) {
  return inputs.x.scalar_type() == at::kDouble ? backward_rows<double>(inputs, rstd, dy, dsum)
                                               : backward_rows<float>(inputs, rstd, dy, dsum);
}

}  // namespace osdn::ops::rms_norm_detail
