#include <cmath>

#include "ops/detail/decay_gate_paths.h"
#include "tensor/torch.h"

namespace osdn::ops::decay_gate_detail {
namespace {

constexpr int64_t kRowsPerTask = 16;

template <typename T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

template <typename T>
T softplus(T x) {
  return x > T(20) ? x : std::log1p(std::exp(x));
}

/// Calls body(element, value of y, rate of its head) for every element.
template <typename T, typename Body>
void for_each(const Inputs& in, const Body& body) {
  const int64_t HV = in.y.size(1);
  const int64_t K = in.y.size(2);
  const T* y = in.y.const_data_ptr<T>();        // [N, HV, K]
  const T* rate = in.rate.const_data_ptr<T>();  // [HV]
  at::parallel_for(0, in.y.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * HV * K; i < end * HV * K; ++i) body(i, y[i], rate[i / K % HV]);
  });
}

template <typename T>
at::Tensor forward_elements(const Inputs& in) {
  at::Tensor g = at::empty_like(in.y);
  T* out = g.mutable_data_ptr<T>();  // [N, HV, K]
  const T bound = static_cast<T>(in.lower_bound.value_or(0));
  if (in.lower_bound)
    for_each<T>(in, [=](int64_t i, T y, T rate) { out[i] = bound * sigmoid(rate * y); });  // (eq. 2)
  else
    for_each<T>(in, [=](int64_t i, T y, T rate) { out[i] = -rate * softplus(y); });  // (eq. 1)
  return g;
}

template <typename T>
Gradients backward_elements(const Inputs& in, const at::Tensor& dg) {
  Gradients out{.dy = at::empty_like(in.y), .drate = at::empty_like(in.y)};
  const T* upstream = dg.const_data_ptr<T>();  // [N, HV, K]
  T* dy = out.dy.mutable_data_ptr<T>();        // [N, HV, K]
  T* drate = out.drate.mutable_data_ptr<T>();  // [N, HV, K]
  const T bound = static_cast<T>(in.lower_bound.value_or(0));
  if (in.lower_bound)
    for_each<T>(in, [=](int64_t i, T y, T rate) {
      const T s = sigmoid(rate * y);
      const T dz = upstream[i] * bound * s * (T(1) - s);
      dy[i] = dz * rate;         // (eq. 5)
      drate[i] = dz * rate * y;  // (eq. 6)
    });
  else
    for_each<T>(in, [=](int64_t i, T y, T rate) {
      dy[i] = -upstream[i] * rate * sigmoid(y);      // (eq. 3)
      drate[i] = -upstream[i] * rate * softplus(y);  // (eq. 4)
    });
  return out;
}

}  // namespace

at::Tensor forward_cpu(const Inputs& in) {
  return in.y.scalar_type() == at::kDouble ? forward_elements<double>(in) : forward_elements<float>(in);
}

Gradients backward_cpu(const Inputs& in, const at::Tensor& dg) {
  return in.y.scalar_type() == at::kDouble ? backward_elements<double>(in, dg)
                                           : backward_elements<float>(in, dg);
}

}  // namespace osdn::ops::decay_gate_detail
