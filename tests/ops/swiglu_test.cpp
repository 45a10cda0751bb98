#include "ops/swiglu.h"

#include "base/error.h"
#include "ops/detail/swiglu_paths.h"
#include "tests/ops/swiglu_cases.h"

namespace osdn::test::swiglu_test {

TEST_CASE("swiglu and its gradient equal the reference and finite differences", "[swiglu]") {
  check_against_reference(make_case(5, 7), at::kDouble, at::kCPU, 1e-13);
  check_against_reference(make_case(5, 7), at::kBFloat16, at::kCPU, kHalfTolerance);
  check_finite_differences(make_case(3, 5));
  for (const int64_t rows : {1, 63, 64, 65, 1000})
    check_against_reference(make_case(rows, 33), at::kFloat, at::kCPU, kFloatTolerance);
}

TEST_CASE("swiglu's loops and its ATen form agree", "[swiglu]") {
  const at::Tensor gate_up = normal({19, 26}, 2);
  const at::Tensor dz = normal({19, 13}, 3);
  namespace paths = ops::swiglu_detail;
  check_close("z", paths::forward_aten(gate_up), paths::forward_cpu(gate_up), 1e-14);
  check_close("dgate_up", paths::backward_aten(gate_up, dz), paths::backward_cpu(gate_up, dz), 1e-14);
}

TEST_CASE("swiglu takes strided inputs and upstream gradients in any layout", "[swiglu]") {
  check_upstream_layouts(make_case(6, 4));
  const at::Tensor wide = normal({5, 30}, 4);
  const at::Tensor part = wide.slice(1, 1, 21, 2);  // [5, 10], every second column
  CHECK(at::equal(ops::swiglu(part), ops::swiglu(part.contiguous())));
}

TEST_CASE("swiglu has the same bits with any number of threads", "[swiglu]") {
  check_thread_invariance(make_case(513, 70));
}

TEST_CASE("swiglu stays finite at large arguments and without rows", "[swiglu]") {
  const at::Tensor extreme =
      at::tensor({-1e4, 1e4, -90.0, 90.0, 1.0, 1.0, 1.0, 1.0}).to(at::kFloat).view({1, 8});
  const at::Tensor x = extreme.clone().set_requires_grad(true);
  const at::Tensor z = ops::swiglu(x);
  check_close("z", z, at::tensor({0.0, 1e4, 0.0, 90.0}).to(at::kFloat).view({1, 4}), 1e-6);
  z.sum().backward();
  CHECK(at::isfinite(x.grad()).all().item<bool>());
  CHECK(ops::swiglu(at::zeros({0, 6})).sizes() == at::IntArrayRef({0, 3}));
}

TEST_CASE("swiglu refuses an odd number of columns", "[swiglu]") {
  CHECK(contains(message_of<UserError>([] {
                   ops::swiglu(at::zeros({2, 5}));
                 }),
                 "expected an even number of columns"));
}

TEST_CASE("swiglu on CUDA equals the reference", "[swiglu][cuda]") {
  REQUIRE(at::hasCUDA());
  check_against_reference(make_case(65, 33), at::kFloat, at::kCUDA, kFloatTolerance);
  check_against_reference(make_case(65, 33), at::kBFloat16, at::kCUDA, kHalfTolerance);
}

}  // namespace osdn::test::swiglu_test
