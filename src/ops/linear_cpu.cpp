// y = x W^T as dot products. Every one is accumulated in the same lanes in the same order wherever its row
// lies, which no blocked matrix product of a library promises: there the number of rows chooses the kernel.
#include <algorithm>
#include <cstring>

#include "ops/detail/linear_paths.h"
#include "tensor/torch.h"

namespace osdn::ops::linear_detail {
namespace {

// Rows whose inputs stay in the second-level cache while all weights pass.
constexpr int64_t kRowBlock = 64;
// Outputs of one task of the thread pool.
constexpr int64_t kOutputsPerTask = 32;

template <typename T>
struct DotProducts {
  int64_t num_rows = 0;     // N
  int64_t num_outputs = 0;  // D_out
  int64_t width = 0;        // D_in
  const T* x = nullptr;     // [N, D_in]
  const T* w = nullptr;     // [D_out, D_in]
  const T* bias = nullptr;  // [D_out] or null
  T* y = nullptr;           // [N, D_out]
};

// 64 bytes: one AVX-512 register, two of AVX2, four of SSE2.
template <typename T>
struct Lanes {
  typedef T type __attribute__((vector_size(64)));
  static constexpr int64_t kCount = 64 / sizeof(T);
};

// kRows rows by kOutputs outputs, the whole width in registers.
template <typename T, int kRows, int kOutputs>
[[gnu::always_inline]] inline void dot_tile(const DotProducts<T>& p, int64_t row, int64_t output) {
  using V = typename Lanes<T>::type;
  constexpr int64_t kCount = Lanes<T>::kCount;
  V sum[kRows][kOutputs];
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) sum[r][o] = V{};
  const T* x = p.x + row * p.width;
  const T* w = p.w + output * p.width;
  const auto add = [&](int64_t at, int64_t count) __attribute__((always_inline)) {
    const size_t size_bytes = static_cast<size_t>(count) * sizeof(T);
    V factor[kOutputs] = {};  // lanes beyond `count` stay zero and add nothing
    for (int o = 0; o < kOutputs; ++o) std::memcpy(&factor[o], w + o * p.width + at, size_bytes);
    for (int r = 0; r < kRows; ++r) {
      V input{};
      std::memcpy(&input, x + r * p.width + at, size_bytes);
      for (int o = 0; o < kOutputs; ++o) sum[r][o] += input * factor[o];
    }
  };
  int64_t at = 0;
  for (; at + kCount <= p.width; at += kCount) add(at, kCount);
  if (at < p.width) add(at, p.width - at);
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) {
      T total = p.bias != nullptr ? p.bias[output + o] : T(0);
      for (int64_t lane = 0; lane < kCount; ++lane) total += sum[r][o][lane];
      p.y[(row + r) * p.num_outputs + output + o] = total;
    }
}

template <typename T, int kRows, int kOutputs>
[[gnu::always_inline]] inline void dot_outputs(const DotProducts<T>& p, int64_t begin, int64_t end) {
  for (int64_t block = 0; block < p.num_rows; block += kRowBlock) {
    const int64_t block_end = std::min(block + kRowBlock, p.num_rows);
    int64_t output = begin;
    for (; output + kOutputs <= end; output += kOutputs) {
      int64_t row = block;
      for (; row + kRows <= block_end; row += kRows) dot_tile<T, kRows, kOutputs>(p, row, output);
      for (; row < block_end; ++row) dot_tile<T, 1, kOutputs>(p, row, output);
    }
    for (; output < end; ++output)
      for (int64_t row = block; row < block_end; ++row) dot_tile<T, 1, 1>(p, row, output);
  }
}

template <typename T>
[[gnu::target("avx512f,avx512vl,avx2,fma")]] void dot_outputs_avx512(const DotProducts<T>& p, int64_t begin,
                                                                     int64_t end) {
  dot_outputs<T, 4, 4>(p, begin, end);
}

template <typename T>
[[gnu::target("avx2,fma")]] void dot_outputs_avx2(const DotProducts<T>& p, int64_t begin, int64_t end) {
  dot_outputs<T, 2, 2>(p, begin, end);
}

template <typename T>
void dot_outputs_any(const DotProducts<T>& p, int64_t begin, int64_t end) {
  dot_outputs<T, 2, 2>(p, begin, end);
}

template <typename T>
at::Tensor dot_products(const at::Tensor& x, const at::Tensor& value, const at::Tensor& bias) {
  using Function = void (*)(const DotProducts<T>&, int64_t, int64_t);
  static const Function chosen = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")
                                     ? Function(dot_outputs_avx512<T>)
                                 : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
                                     ? Function(dot_outputs_avx2<T>)
                                     : Function(dot_outputs_any<T>);
  const at::Tensor y = at::empty({x.size(0), value.size(0)}, x.options());
  const DotProducts<T> p{.num_rows = x.size(0),
                         .num_outputs = value.size(0),
                         .width = x.size(1),
                         .x = x.const_data_ptr<T>(),
                         .w = value.const_data_ptr<T>(),
                         .bias = bias.defined() ? bias.const_data_ptr<T>() : nullptr,
                         .y = y.mutable_data_ptr<T>()};
  if (p.num_rows > 0)
    at::parallel_for(0, p.num_outputs, kOutputsPerTask,
                     [&](int64_t begin, int64_t end) { chosen(p, begin, end); });
  return y;
}

}  // namespace

at::Tensor forward_cpu(const at::Tensor& x, const at::Tensor& value, const at::Tensor& bias) {
  const at::Tensor addend = bias.defined() ? bias.to(x.scalar_type()).contiguous() : bias;
  return x.scalar_type() == at::kDouble ? dot_products<double>(x.contiguous(), value.contiguous(), addend)
                                        : dot_products<float>(x.contiguous(), value.contiguous(), addend);
}

}  // namespace osdn::ops::linear_detail
