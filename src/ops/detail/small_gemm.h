// Matrix products of a few dozen rows and columns, one thread each: the inner work of the delta rule's CPU
// kernel. Chosen at run time for AVX-512, AVX2 or any x86-64; the bits depend on that choice and on nothing
// else.
#pragma once

#include <cstdint>

namespace osdn::ops::small_gemm {

inline constexpr int64_t kRows = 4;      // m is a multiple
inline constexpr int64_t kColumns = 16;  // n is a multiple; buffers are padded accordingly

/// Parts of the product known to be zero or not wanted; whole tiles of them are skipped.
enum class Skip {
  kNothing,
  kUpperA,  // a[i, p] is zero for p > i
  kLowerA,  // a[i, p] is zero for p < i
  kUpperC,  // c[i, j] is not wanted for j > i
};

// c = alpha a b, or c += alpha a b.
template <typename T>
struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const T* a = nullptr;  // [m, k]: element (i, p) at a[i * a_row + p * a_column]
  int64_t a_row = 0;
  int64_t a_column = 1;
  const T* b = nullptr;  // [k, n], rows b_row apart
  int64_t b_row = 0;
  T* c = nullptr;  // [m, n], rows c_row apart
  int64_t c_row = 0;
  T alpha = 1;
  bool accumulate = false;
  Skip skip = Skip::kNothing;
};

void run(const Product<float>& product);
void run(const Product<double>& product);

}  // namespace osdn::ops::small_gemm
