// The product whose rows do not depend on each other by the kernels, as decoding takes it, against float64
// and bit by bit against itself.
#include <optional>
#include <vector>

#include "ops/linear.h"
#include "ops/sequences.h"
#include "tests/support/op_check.h"
#include "tests/support/poison.h"

namespace osdn::test::linear_cuda_test {

const at::Device kLinearDevice(at::kCUDA, 0);

// One rounding of the output to bf16, 2^-8 of it at most, which a single output can reach; sums are fp32.
constexpr double kBf16Output = 4e-3;

at::Tensor on_device(const at::Tensor& x, at::ScalarType dtype) { return x.to(kLinearDevice, dtype); }

// One rounding of the output to bf16 or fp32 sums of a few thousand numbers.
double tolerance_of(at::ScalarType dtype) { return dtype == at::kBFloat16 ? kBf16Output : 2e-6; }

TEST_CASE("products apart equal float64 at every width and number of rows, with and without a bias",
          "[linear_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const at::NoGradGuard no_grad;
  const ops::SequencesApart apart;
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kFloat);
  for (const int64_t width : {5, 8, 64, 248, 264, 2048, 2056, 5632})
    for (const int64_t outputs : {1, 3, 33, 200, 1000})
      for (const int64_t rows : {1, 2, 8, 9, 16, 17, 33, 64, 65, 200, 300}) {
        if (rows > 65 && width > 300 && outputs != 200) continue;
        CAPTURE(dtype, width, outputs, rows);
        const at::Tensor x = on_device(normal({rows, width}, 1), dtype);
        const at::Tensor w = on_device(normal({outputs, width}, 2), dtype);
        const at::Tensor product = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
        for (const auto bias_type :
             {std::optional<at::ScalarType>(), std::optional(at::kFloat), std::optional(at::kBFloat16)}) {
          if (bias_type == at::kBFloat16 && dtype == at::kFloat) continue;
          const at::Tensor bias = bias_type ? on_device(normal({outputs}, 3), *bias_type) : at::Tensor();
          check_close("y", ops::linear(x, {w}, {bias}), bias_type ? product + bias.to(at::kDouble) : product,
                      tolerance_of(dtype));
        }
      }
}

TEST_CASE("a row has the same bits alone and in any company", "[linear_cuda][cuda]") {
  const at::NoGradGuard no_grad;
  const ops::SequencesApart apart;
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kFloat);
  // Tiles of every kernel partly and wholly filled; chains of equal and of unequal length.
  for (const auto& [width, outputs] :
       {std::pair<int64_t, int64_t>{2048, 520}, {2056, 131}, {72, 40}, {5632, 300}}) {
    const at::Tensor x = on_device(normal({300, width}, 1), dtype);
    const at::Tensor w = on_device(normal({outputs, width}, 2), dtype);
    std::vector<at::Tensor> alone;
    for (int64_t row = 0; row < x.size(0); ++row) alone.push_back(ops::linear(x.narrow(0, row, 1), {w}));
    const at::Tensor expected = at::cat(alone);
    for (int64_t rows = 2; rows <= x.size(0); rows += rows < 70 ? 1 : 23) {
      CAPTURE(dtype, width, outputs, rows);
      CHECK(at::equal(ops::linear(x.narrow(0, 300 - rows, rows), {w}), expected.narrow(0, 300 - rows, rows)));
    }
    CHECK(at::equal(ops::linear(x, {w}), expected));
  }
}

TEST_CASE("an output has the same bits in a wider matrix", "[linear_cuda][cuda]") {
  const at::NoGradGuard no_grad;
  const ops::SequencesApart apart;
  const at::Tensor w = on_device(normal({300, 1000}, 2), at::kBFloat16);
  for (const int64_t rows : {1, 20, 100, 300}) {
    const at::Tensor x = on_device(normal({rows, 1000}, 1), at::kBFloat16);
    CHECK(at::equal(ops::linear(x, {w.narrow(0, 0, 77)}), ops::linear(x, {w}).narrow(1, 0, 77)));
  }
}

TEST_CASE("sums of rows have the same bits in any company", "[linear_cuda][cuda]") {
  const at::NoGradGuard no_grad;
  const ops::SequencesApart apart;
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kFloat);
  const at::Tensor x = on_device(normal({90, 3, 100}, 1), dtype);
  const at::Tensor together = ops::sum_last(x);
  check_close("sums", together, x.to(at::kDouble).sum(-1, true), tolerance_of(dtype));
  for (const int64_t row : {0, 41, 89})
    CHECK(at::equal(ops::sum_last(x.narrow(0, row, 1)), together.narrow(0, row, 1)));
}

TEST_CASE("rows of a wider tensor are read where they lie and nothing behind them", "[linear_cuda][cuda]") {
  const at::NoGradGuard no_grad;
  const ops::SequencesApart apart;
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kFloat);
  for (const int64_t rows : {3, 70, 300}) {
    const at::Tensor x = on_device(normal({rows, 264}, 1), dtype);
    const at::Tensor w = on_device(normal({50, 264}, 2), dtype);
    const at::Tensor expected = ops::linear(x, {w});
    for (const int64_t begin : {0, 8, 3}) {  // the last is not aligned
      at::Tensor wide = at::full({rows, 600}, std::nan(""), x.options());
      wide.narrow(1, begin, 264).copy_(x);
      CHECK(at::equal(ops::linear(wide.narrow(1, begin, 264), {w}), expected));
      CHECK(
          at::equal(ops::linear(wide.narrow(1, begin, 264).narrow(0, 2, 1), {w}), expected.narrow(0, 2, 1)));
    }
  }
}

TEST_CASE("what is wanted with a gradient is the library's product, within the guard and without",
          "[linear_cuda][cuda]") {
  const at::Tensor x = on_device(normal({2, 264}, 1), at::kBFloat16);
  const at::Tensor w = on_device(normal({50, 264}, 2), at::kBFloat16);
  const at::Tensor expected = at::mm(x, w.t());
  CHECK(at::equal(ops::linear(x, {w}), expected));
  {
    const ops::SequencesApart apart;
    CHECK(!ops::SequencesApart::holds_for(x));
    CHECK(at::equal(ops::linear(x, {w}), expected));
    const at::NoGradGuard no_grad;
    CHECK(ops::SequencesApart::holds_for(x));
    { const ops::SequencesApart within; }
    CHECK(ops::SequencesApart::holds_for(x));
    CHECK(!ops::SequencesApart::holds_for(x.cpu()));
  }
  const at::NoGradGuard no_grad;
  CHECK(!ops::SequencesApart::holds_for(x));
}

TEST_CASE("outputs beyond 2^31 weights are computed like the first", "[linear_cuda][cuda]") {
  const at::NoGradGuard no_grad;
  const ops::SequencesApart apart;
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
