#include "ops/detail/small_gemm.h"

#include <algorithm>
#include <cstring>

namespace osdn::ops::small_gemm {
namespace {

// 64 bytes: one AVX-512 register, two of AVX2, four of SSE2.
template <typename T>
struct Vector {
  typedef T type __attribute__((vector_size(64)));
  static constexpr int64_t kLanes = 64 / sizeof(T);
};

// A tile of kRows rows and kVectors vectors, all of k in registers.
template <typename T, int kVectors>
[[gnu::always_inline]] inline void tile(const Product<T>& p, int64_t i, int64_t j, int64_t k_begin,
                                        int64_t k_end) {
  using V = typename Vector<T>::type;
  constexpr int64_t kLanes = Vector<T>::kLanes;
  V sum[kRows][kVectors];
  for (int64_t r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V{};
  const T* a = p.a + i * p.a_row + k_begin * p.a_column;
  const T* b = p.b + k_begin * p.b_row + j;
  for (int64_t q = k_begin; q < k_end; ++q) {
    V row[kVectors];
    for (int v = 0; v < kVectors; ++v) std::memcpy(&row[v], b + v * kLanes, sizeof(V));
    for (int64_t r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) sum[r][v] += a[r * p.a_row] * row[v];
    a += p.a_column;
    b += p.b_row;
  }
  for (int64_t r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) {
      T* to = p.c + (i + r) * p.c_row + j + v * kLanes;
      V value = sum[r][v] * p.alpha;
      if (p.accumulate) {
        V old;
        std::memcpy(&old, to, sizeof(V));
        value += old;
      }
      std::memcpy(to, &value, sizeof(V));
    }
}

template <typename T, int kVectors>
[[gnu::always_inline]] inline void product(const Product<T>& p) {
  constexpr int64_t kLanes = Vector<T>::kLanes;
  for (int64_t i = 0; i < p.m; i += kRows) {
    const int64_t k_begin = p.skip == Skip::kLowerA ? std::min(i, p.k) : 0;
    const int64_t k_end = p.skip == Skip::kUpperA ? std::min(i + kRows, p.k) : p.k;
    const int64_t n =
        p.skip == Skip::kUpperC ? std::min(p.n, (i + kRows + kColumns - 1) / kColumns * kColumns) : p.n;
    int64_t j = 0;
    for (; j + kVectors * kLanes <= n; j += kVectors * kLanes) tile<T, kVectors>(p, i, j, k_begin, k_end);
    for (; j < n; j += kLanes) tile<T, 1>(p, i, j, k_begin, k_end);
  }
}

template <typename T>
[[gnu::target("avx512f,avx512vl,avx2,fma")]] void product_avx512(const Product<T>& p) {
  product<T, 2>(p);
}

template <typename T>
[[gnu::target("avx2,fma")]] void product_avx2(const Product<T>& p) {
  product<T, 1>(p);
}

template <typename T>
void product_any(const Product<T>& p) {
  product<T, 1>(p);
}

template <typename T>
void dispatch(const Product<T>& p) {
  using Function = void (*)(const Product<T>&);
  static const Function chosen =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") ? Function(product_avx512<T>)
      : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")       ? Function(product_avx2<T>)
                                                                              : Function(product_any<T>);
  chosen(p);
}

}  // namespace

void run(const Product<float>& product) { dispatch(product); }
void run(const Product<double>& product) { dispatch(product); }

}  // namespace osdn::ops::small_gemm
