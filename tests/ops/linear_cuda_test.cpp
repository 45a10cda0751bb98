// The product of a few rows by the kernel, as decoding takes it, against float64.
#include <optional>

#include "ops/linear.h"
#include "tests/support/op_check.h"
#include "tests/support/poison.h"

namespace osdn::test::linear_cuda_test {

const at::Device kLinearDevice(at::kCUDA, 0);

// One rounding of the output to bf16, 2^-8 of it at most, which a single output can reach; sums are fp32.
constexpr double kBf16Output = 4e-3;

at::Tensor on_device(const at::Tensor& x, at::ScalarType dtype) { return x.to(kLinearDevice, dtype); }

TEST_CASE("the product of a few rows equals float64 at every width, with and without a bias",
          "[linear_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const at::NoGradGuard no_grad;
  for (const int64_t width : {8, 64, 248, 256, 264, 2048, 2056, 5632})
    for (const int64_t outputs : {1, 3, 33, 1000})
      for (const int64_t rows : {1, 2, 3, 4, 5}) {
        CAPTURE(width, outputs, rows);
        const at::Tensor x = on_device(normal({rows, width}, 1), at::kBFloat16);
        const at::Tensor w = on_device(normal({outputs, width}, 2), at::kBFloat16);
        for (const auto bias_type :
             {std::optional<at::ScalarType>(), std::optional(at::kFloat), std::optional(at::kBFloat16)}) {
          const at::Tensor bias = bias_type ? on_device(normal({outputs}, 3), *bias_type) : at::Tensor();
          const at::Tensor wide_bias = bias_type ? bias.to(at::kDouble) : at::Tensor();
          const at::Tensor expected = ops::linear_ref(x.to(at::kDouble), w.to(at::kDouble), wide_bias);
          check_close("y", ops::linear(x, {w}, {bias}), expected, kBf16Output);
        }
      }
}

TEST_CASE("a row has the same bits alone and beside up to three others", "[linear_cuda][cuda]") {
  const at::NoGradGuard no_grad;
  const at::Tensor x = on_device(normal({4, 2056}, 1), at::kBFloat16);
  const at::Tensor w = on_device(normal({700, 2056}, 2), at::kBFloat16);
  const at::Tensor together = ops::linear(x, {w});
  for (int64_t rows = 1; rows < 4; ++rows)
    for (int64_t begin = 0; begin + rows <= 4; ++begin)
      CHECK(at::equal(ops::linear(x.narrow(0, begin, rows), {w}), together.narrow(0, begin, rows)));
}

TEST_CASE("rows of a wider tensor are read where they lie and nothing behind them", "[linear_cuda][cuda]") {
  const at::NoGradGuard no_grad;
  const at::Tensor x = on_device(normal({3, 264}, 1), at::kBFloat16);
  const at::Tensor w = on_device(normal({50, 264}, 2), at::kBFloat16);
  const at::Tensor expected = ops::linear(x, {w});
  for (const int64_t begin : {0, 8, 3}) {  // the last is not aligned
    at::Tensor wide = at::full({3, 600}, std::nan(""), x.options());
    wide.narrow(1, begin, 264).copy_(x);
    CHECK(at::equal(ops::linear(wide.narrow(1, begin, 264), {w}), expected));
    CHECK(at::equal(ops::linear(wide.narrow(1, begin, 264).narrow(0, 2, 1), {w}), expected.narrow(0, 2, 1)));
  }
}

TEST_CASE("outputs beyond 2^31 weights are computed like the first", "[linear_cuda][cuda]") {
  const at::NoGradGuard no_grad;
  const int64_t width = 8192;
  const int64_t outputs = (int64_t{1} << 31) / width + 5;
  const at::Tensor x = on_device(normal({2, width}, 1), at::kBFloat16);
  const at::Tensor last = on_device(normal({5, width}, 2), at::kBFloat16);
  const at::Tensor w = at::zeros({outputs, width}, x.options());
  w.narrow(0, outputs - 5, 5).copy_(last);
  const at::Tensor y = ops::linear(x, {w});
  CHECK(at::equal(y.narrow(1, outputs - 5, 5), ops::linear(x, {last})));
  CHECK(y.narrow(1, 0, outputs - 5).abs().max().item<double>() == 0);
}

}  // namespace osdn::test::linear_cuda_test
