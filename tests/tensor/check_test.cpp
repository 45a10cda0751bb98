#include "tensor/check.h"

#include "base/error.h"
#include "tests/support/op_check.h"

namespace osdn::test::check_test {

TEST_CASE("a wrong shape is named with op, argument, expectation and page", "[check]") {
  const at::Tensor beta = at::zeros({4, 1000});
  CHECK(message_of<UserError>([&] {
          check_shape("delta_rule", "beta", beta, {1000, 4});
        }) ==
        "delta_rule: beta: expected shape [1000, 4], got [4, 1000] (packed tokens first, "
        "docs/ops/delta_rule.md)");
  CHECK(contains(message_of<UserError>([&] { check_shape("op", "x", beta, {-1}); }),
                 "expected shape [*], got [4, 1000]"));
  CHECK(contains(message_of<UserError>([] { check_shape("op", "x", {}, {2}); }), "op: x: expected a tensor"));
  check_shape("op", "x", beta, {-1, 1000});
}

TEST_CASE("a wrong dtype is named with those allowed", "[check]") {
  CHECK(message_of<UserError>([] {
          check_dtype("op", "x", at::zeros({1}, at::kInt), {at::kFloat, at::kDouble});
        }) == "op: x: expected dtype Float, Double, got Int");
  check_dtype("op", "x", at::zeros({1}), {at::kFloat});
}

TEST_CASE("tensors of two devices are refused", "[check]") {
  const at::Tensor here = at::zeros({1});
  const at::Tensor elsewhere = at::empty({1}, at::TensorOptions().device(at::kMeta));
  CHECK(contains(message_of<UserError>([&] { check_same_device("op", "x", elsewhere, here); }),
                 "op: x: expected device cpu, got meta"));
  check_same_device("op", "x", here, here);
}

}  // namespace osdn::test::check_test
