// The CUDA kernels of the norms against the reference in float64 on the CPU.
#include "kernels/rms_norm.h"
#include "tests/ops/rms_norm_cases.h"
#include "tests/support/poison.h"

namespace osdn::test::rms_norm_cuda_test {

using namespace rms_norm_test;  // the cases

const at::Device kDevice(at::kCUDA, 0);

TEST_CASE("the norms' kernels equal float64 at every width and number of rows", "[rms_norm_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const int64_t width = GENERATE(8, 64, 128, 136, 256, 512, 1024, 1200, 2048, 4096);
  for (const int64_t rows : {1, 2, 15, 16, 17, 33, 200})
    for (const OpCase& test : all_cases(rows, width)) {
      CAPTURE(rows, width);
      check_against_reference(test, at::kFloat, kDevice, kFloatTolerance);
      check_against_reference(test, at::kBFloat16, kDevice, kHalfTolerance);
    }
}

TEST_CASE("the norms' kernels equal float64 over more rows than a grid takes at once",
          "[rms_norm_cuda][cuda]") {
  const PoisonedMemory poisoned;
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{20003, 64}, {2503, 1024}, {301, 8192}})
    for (const OpCase& test : all_cases(rows, width)) {
      CAPTURE(rows, width);
      check_against_reference(test, at::kBFloat16, kDevice, kHalfTolerance);
      check_sinks(test, at::kBFloat16, kDevice, kHalfTolerance);
    }
}

TEST_CASE("odd and very wide rows are normalised without the kernels", "[rms_norm_cuda][cuda]") {
  for (const int64_t width : {50, 7, 8200})
    for (const OpCase& test : all_cases(9, width)) {
      check_against_reference(test, at::kFloat, kDevice, kFloatTolerance);
      check_against_reference(test, at::kBFloat16, kDevice, kHalfTolerance);
    }
}

TEST_CASE("the norms' kernels give the same bits every time and read misaligned rows",
          "[rms_norm_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const at::Tensor weight = normal({1024}, 1).to(kDevice, at::kFloat);
  const at::Tensor buffer = normal({3000 * 1024 + 3}, 2).to(kDevice, at::kBFloat16);
  const at::Tensor dy = normal({3000, 1024}, 3).to(kDevice, at::kBFloat16);
  Tensors first;
  for (const bool misaligned : {false, false, true}) {
    const at::Tensor rows = buffer.narrow(0, 3, 3000 * 1024).view({3000, 1024});
    const at::Tensor x = (misaligned ? rows : rows.clone()).detach().set_requires_grad(true);
    const at::Tensor sink = at::zeros_like(weight);
    const at::Tensor y = ops::rms_norm(x, {weight, sink}, kEps);
    y.backward(dy);
    const Tensors results = {y, x.grad(), sink};
    if (first.empty()) first = results;
    for (size_t i = 0; i < results.size(); ++i) CHECK(at::equal(results[i], first[i]));
  }
}

TEST_CASE("rows of zeros and a sum that cancels stay finite in the norms' kernels", "[rms_norm_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const at::Tensor weight = at::ones({128}, at::TensorOptions(kDevice));
  const at::Tensor branch = normal({4, 128}, 1).to(kDevice, at::kBFloat16).set_requires_grad(true);
  const at::Tensor residual = (-branch).detach().set_requires_grad(true);
  const auto out = ops::add_rms_norm(branch, residual, {weight, {}}, kEps);
  (out.normalized.sum() + out.sum.sum()).backward();
  CHECK(at::equal(out.sum, at::zeros_like(out.sum)));
  CHECK(at::equal(out.normalized, at::zeros_like(out.sum)));
  // 1 / sqrt(eps) of the gradient, and 1 past the norm.
  check_close("gradient", branch.grad(), at::full({4, 128}, 1001.0, at::kDouble), kHalfTolerance);
}

TEST_CASE("the last of more than 2^31 numbers are normalised like the first", "[rms_norm_cuda][cuda]") {
  const int64_t D = 1024;
  const int64_t R = (int64_t{1} << 31) / D + 40;
  const at::TensorOptions options = at::TensorOptions(kDevice).dtype(at::kBFloat16);
  at::manual_seed(1);
  const at::Tensor few = at::randn({40, D}, options);
  const at::Tensor weight = at::randn({D}, options.dtype(at::kFloat));
  const at::Tensor x = at::ones({R, D}, options);
  x.narrow(0, R - 40, 40).copy_(few);
  Tensors results[2];
  for (const bool whole : {true, false}) {
    const at::Tensor input = (whole ? x : few).detach().set_requires_grad(true);
    const at::Tensor y = ops::gated_rms_norm(input, input.detach(), {weight, at::zeros_like(weight)}, kEps,
                                             ops::GateActivation::kSwish);
    y.backward(input.detach());
    const int64_t begin = input.size(0) - 40;
    results[whole] = {y.narrow(0, begin, 40), input.grad().narrow(0, begin, 40)};
  }
  for (size_t i = 0; i < 2; ++i) CHECK(at::equal(results[0][i], results[1][i]));
}

}  // namespace osdn::test::rms_norm_cuda_test
