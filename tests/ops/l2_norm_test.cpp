// L2 normalisation against its reference and finite differences.
#include <vector>

#include "base/error.h"
#include "ops/l2_norm.h"
#include "tests/support/test.h"

namespace osdn::ops::l2_norm_test {

using osdn::test::check_close;

at::Tensor gradient_of(const std::function<at::Tensor(const at::Tensor&)>& op, const at::Tensor& x,
                       const at::Tensor& weights) {
  return torch::autograd::grad({(op(x) * weights).sum()}, {x})[0];
}

TEST_CASE("l2_norm equals its reference in value and gradient for any width", "[l2_norm]") {
  at::manual_seed(1);
  for (const int64_t width : {1, 3, 15, 16, 17, 64, 100}) {
    CAPTURE(width);
    const at::Tensor x = at::randn({7, 3, width}, at::kDouble).set_requires_grad(true);
    const at::Tensor weights = at::randn({7, 3, width}, at::kDouble);
    check_close("y", l2_norm(x).detach(), l2_norm_ref(x).detach(), 1e-14);
    // At width 1 the two parts of the gradient cancel down to the eps, 1e-6 of each.
    check_close("dx", gradient_of(l2_norm, x, weights), gradient_of(l2_norm_ref, x, weights), 1e-9);
  }
}

TEST_CASE("the gradient of l2_norm agrees with finite differences", "[l2_norm]") {
  at::manual_seed(2);
  const at::Tensor x = at::randn({3, 5}, at::kDouble).set_requires_grad(true);
  const at::Tensor weights = at::randn({3, 5}, at::kDouble);
  const at::Tensor numeric = osdn::test::finite_difference(
      [&] { return (l2_norm(x.detach()) * weights).sum().item<double>(); }, x.detach());
  check_close("dx", gradient_of(l2_norm, x, weights), numeric, 1e-8);
}

TEST_CASE("the eps lies inside the root: a key of norm 1e-3 becomes 0.7071 long", "[l2_norm]") {
  const at::Tensor x = at::tensor({1e-3, 0.0, 0.0}, at::kDouble);
  CHECK(l2_norm(x).norm().item<double>() == Approx(std::sqrt(0.5)));
}

TEST_CASE("the zero vector and denormals give finite values and gradients", "[l2_norm]") {
  at::Tensor x = at::zeros({2, 4}, at::kFloat);
  x[1][2] = 1e-40;
  x.set_requires_grad(true);
  const at::Tensor y = l2_norm(x);
  CHECK(y[0].abs().max().item<double>() == 0);
  const at::Tensor gradient = torch::autograd::grad({y.sum()}, {x})[0];
  // At 0 the slope is 1 / sqrt(eps) in every direction.
  check_close("dx", gradient, at::full({2, 4}, 1000, at::kFloat), 1e-6);
}

TEST_CASE("bf16 is normalised in float32 and rounded once", "[l2_norm]") {
  at::manual_seed(3);
  const at::Tensor x = at::randn({50, 32}).to(at::kBFloat16).set_requires_grad(true);
  const at::Tensor exact = l2_norm_ref(x.detach().to(at::kFloat));
  CHECK(at::equal(l2_norm(x).detach(), exact.to(at::kBFloat16)));
  const at::Tensor weights = at::randn({50, 32});
  // One bf16 rounding of y and one of dx: 2^-9 each.
  check_close("dx", gradient_of(l2_norm, x, weights.to(at::kBFloat16)).to(at::kFloat),
              gradient_of(l2_norm_ref, x.detach().to(at::kFloat).set_requires_grad(true), weights), 1e-2);
}

TEST_CASE("strided rows and expanded upstream gradients are read correctly", "[l2_norm]") {
  at::manual_seed(4);
  const at::Tensor wide = at::randn({6, 20}, at::kDouble);
  const at::Tensor view = wide.narrow(1, 3, 8).detach().set_requires_grad(true);
  const at::Tensor copy = view.detach().clone().set_requires_grad(true);
  CHECK(at::equal(l2_norm(view).detach(), l2_norm(copy).detach()));
  CHECK(at::equal(torch::autograd::grad({l2_norm(view).sum()}, {view})[0],
                  torch::autograd::grad({l2_norm(copy).sum()}, {copy})[0]));
}

TEST_CASE("integers are refused", "[l2_norm]") {
  CHECK_THROWS_AS(l2_norm(at::ones({2, 2}, at::kLong)), UserError);
}

TEST_CASE("l2_norm on the device agrees with float64 on the CPU", "[l2_norm][cuda]") {
  at::manual_seed(5);
  const at::Device device(at::kCUDA, 0);
  const at::Tensor x = at::randn({33, 4, 96}, at::kDouble).set_requires_grad(true);
  const at::Tensor weights = at::randn({33, 4, 96}, at::kDouble);
  const at::Tensor truth = gradient_of(l2_norm_ref, x, weights);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor on_device = x.detach().to(device, dtype).set_requires_grad(true);
    const double tolerance = dtype == at::kDouble ? 1e-13 : 1e-6;
    check_close("y", l2_norm(on_device).detach(), l2_norm_ref(x).detach(), tolerance);
    check_close("dx", gradient_of(l2_norm, on_device, weights.to(device, dtype)), truth, tolerance);
  }
}

}  // namespace osdn::ops::l2_norm_test
