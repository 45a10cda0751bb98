// The CUDA kernels of SwiGLU against the reference in float64 on the CPU.
#include "tests/ops/swiglu_cases.h"
#include "tests/support/poison.h"

namespace osdn::test::swiglu_cuda_test {

using namespace swiglu_test;  // the cases

const at::Device kDevice(at::kCUDA, 0);

TEST_CASE("swiglu's kernels equal float64 at every width and number of rows", "[swiglu_cuda][cuda]") {
  const PoisonedMemory poisoned;
  for (const int64_t width : {8, 48, 1000, 2816, 9000})
    for (const int64_t rows : {0, 1, 2, 63, 65, 300}) {
      CAPTURE(rows, width);
      check_against_reference(make_case(rows, width), at::kFloat, kDevice, kFloatTolerance);
      check_against_reference(make_case(rows, width), at::kBFloat16, kDevice, kHalfTolerance);
    }
}

TEST_CASE("swiglu's kernels are finite at gates of any size", "[swiglu_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const at::Tensor gate = at::cat({at::linspace(-3e4, 3e4, 500), at::linspace(-100, 100, 500)});
  const at::Tensor gate_up =
      at::cat({gate, at::ones({1000})}).view({1, 2000}).to(kDevice).set_requires_grad(true);
  const at::Tensor z = ops::swiglu(gate_up);
  z.sum().backward();
  const at::Tensor truth = gate_up.detach().to(at::kCPU, at::kDouble).set_requires_grad(true);
  const at::Tensor expected = ops::swiglu_ref(truth);
  expected.sum().backward();
  check_close("z", z, expected, kFloatTolerance);
  check_close("gradient", gate_up.grad(), truth.grad(), kFloatTolerance);
}

TEST_CASE("the last of more than 2^31 numbers pass swiglu like the first", "[swiglu_cuda][cuda]") {
  const int64_t I = 2816;
  const int64_t N = (int64_t{1} << 31) / (2 * I) + 9;
  const at::TensorOptions options = at::TensorOptions(kDevice).dtype(at::kBFloat16);
  at::manual_seed(1);
  const at::Tensor few = at::randn({8, 2 * I}, options);
  const at::Tensor all = at::ones({N, 2 * I}, options);
  all.narrow(0, N - 8, 8).copy_(few);
  Tensors results[2];
  for (const bool whole : {true, false}) {
    const at::Tensor input = (whole ? all : few).detach().set_requires_grad(true);
    const at::Tensor z = ops::swiglu(input);
    z.backward(z.detach());
    const int64_t begin = input.size(0) - 8;
    results[whole] = {z.narrow(0, begin, 8), input.grad().narrow(0, begin, 8)};
  }
  for (size_t i = 0; i < 2; ++i) CHECK(at::equal(results[0][i], results[1][i]));
}

}  // namespace osdn::test::swiglu_cuda_test
