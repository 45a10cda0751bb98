// The CUDA kernels of the product whose rows do not depend on each other, run on the CPU
// (tests/emulation/cuda_on_cpu.h), against float64 (docs/ops/linear.md eq. 1).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/linear.h"
#include "tests/emulation/buffer.h"
#include "tests/emulation/launch_checked.h"
#include "tests/support/catch.h"

namespace osdn::kernels::linear_kernels_test {

using emulation_test::Buffer;
using emulation_test::launch_checked;
using emulation_test::Numbers;
using emulation_test::relative_error;

enum class Bias { kNone, kFp32, kBf16 };

/// N rows [N, D_in], which lie `stride` numbers apart with NaN between them, and a matrix [D_out, D_in].
template <typename T>
struct Product {
  int64_t rows, outputs, width, stride;
  Bias kind;
  Buffer<T> x, w;
  Buffer<float> bias;
  Buffer<__nv_bfloat16> narrow_bias;

  Product(int64_t num_rows, int64_t num_outputs, int64_t d_in, Bias bias_kind)
      : rows(num_rows),
        outputs(num_outputs),
        width(d_in),
        stride(d_in + 16),
        kind(bias_kind),
        x(static_cast<size_t>(num_rows * stride)),
        w(static_cast<size_t>(num_outputs * d_in)),
        bias(static_cast<size_t>(num_outputs)),
        narrow_bias(static_cast<size_t>(num_outputs)) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < width; ++i) x[row * stride + i] = static_cast<T>(normal(random));
    for (int64_t i = 0; i < outputs * width; ++i) w[i] = static_cast<T>(normal(random));
    for (int64_t i = 0; i < outputs; ++i) {
      bias[i] = normal(random);
      narrow_bias[i] = static_cast<__nv_bfloat16>(bias[i]);
    }
  }

  LinearArgs args(int64_t first, int64_t count, Buffer<T>& y) const {
    return {.x = x.get() + first * stride,
            .x_stride = stride,
            .weight = w.get(),
            .bias = kind == Bias::kNone   ? nullptr
                    : kind == Bias::kFp32 ? static_cast<const void*>(bias.get())
                                          : narrow_bias.get(),
            .bias_bf16 = kind == Bias::kBf16,
            .y = y.get(),
            .num_rows = count,
            .num_outputs = outputs,
            .width = width,
            .bf16 = std::is_same_v<T, __nv_bfloat16>};
  }

  /// y of rows first .. first + count - 1.
  Buffer<T> run(int64_t first, int64_t count) const {
    Buffer<T> y(static_cast<size_t>(count * outputs));
    launch_checked(args(first, count, y));
    CHECK(y.guards_intact());
    return y;
  }

  Numbers exact() const {
    Numbers y(static_cast<size_t>(rows * outputs));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t output = 0; output < outputs; ++output) {
        double sum = kind == Bias::kNone   ? 0.0
                     : kind == Bias::kFp32 ? bias[output]
                                           : static_cast<float>(narrow_bias[output]);
        for (int64_t i = 0; i < width; ++i)
          sum += static_cast<double>(static_cast<float>(x[row * stride + i])) *
                 static_cast<float>(w[output * width + i]);
        y[row * outputs + output] = sum;
      }
    return y;
  }
};

// One rounding of the output, of which few reach the largest; fp32 sums of a few hundred numbers.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 1e-6 : 3e-3;

template <typename T>
void check_product(int64_t rows, int64_t outputs, int64_t width, Bias bias, int64_t alone_every) {
  CAPTURE(rows, outputs, width, static_cast<int>(bias));
  const Product<T> product(rows, outputs, width, bias);
  const Buffer<T> together = product.run(0, rows);
  CHECK(relative_error(together.numbers(), product.exact()) < kTolerance<T>);
  for (int64_t row = 0; row < rows; row += alone_every) {
    CAPTURE(row);
    const Buffer<T> alone = product.run(row, 1);
    CHECK(std::memcmp(alone.host(), together.host() + row * outputs, outputs * sizeof(T)) == 0);
  }
}

// Widths: less than a slab of 32 and of a chain, chains of unequal length, an odd number of slabs; outputs
// and rows that leave tiles partly empty. More outputs than some multiprocessors have blocks for change the
// kernel, as more rows do.
TEST_CASE("a bf16 row has the bits that it has alone in every kernel, and they equal float64",
          "[linear_kernels]") {
  check_product<__nv_bfloat16>(1, 20, 8, Bias::kFp32, 1);
  check_product<__nv_bfloat16>(8, 35, 1160, Bias::kBf16, 3);
  check_product<__nv_bfloat16>(11, 17, 1128, Bias::kNone, 4);
  check_product<__nv_bfloat16>(27, 40, 872, Bias::kFp32, 9);
  check_product<__nv_bfloat16>(70, 67, 360, Bias::kBf16, 23);
  check_product<__nv_bfloat16>(150, 131, 968, Bias::kNone, 49);
  check_product<__nv_bfloat16>(520, 131, 680, Bias::kFp32, 173);
}

TEST_CASE("a bf16 row has the bits that it has alone where there are many outputs", "[linear_kernels]") {
  check_product<__nv_bfloat16>(5, 2117, 904, Bias::kNone, 2);
  check_product<__nv_bfloat16>(13, 2117, 456, Bias::kFp32, 6);
  check_product<__nv_bfloat16>(30, 4300, 392, Bias::kNone, 14);
  check_product<__nv_bfloat16>(8, 6353, 328, Bias::kBf16, 5);
  check_product<__nv_bfloat16>(16, 6353, 328, Bias::kNone, 15);
  check_product<__nv_bfloat16>(29, 6353, 200, Bias::kFp32, 28);
  check_product<__nv_bfloat16>(65, 4300, 264, Bias::kFp32, 64);
}

TEST_CASE("a bf16 row has the bits that it has alone on a device with little shared memory",
          "[linear_kernels][emulated_device]") {
  const emulation_test::SharedLimit limit(99 * 1024);
  check_product<__nv_bfloat16>(66, 4300, 392, Bias::kFp32, 65);
  check_product<__nv_bfloat16>(520, 131, 680, Bias::kBf16, 519);
}

TEST_CASE("a float32 row has the bits that it has alone in every kernel, and they equal float64",
          "[linear_kernels]") {
  check_product<float>(1, 35, 4, Bias::kFp32, 1);
  check_product<float>(3, 40, 300, Bias::kNone, 1);
  check_product<float>(37, 33, 556, Bias::kFp32, 12);
}

}  // namespace osdn::kernels::linear_kernels_test
