// Calls of the loss that its tests share.
#pragma once

#include "ops/linear_cross_entropy.h"
#include "tests/support/op_check.h"

namespace osdn::test::linear_cross_entropy_test {

using ops::kIgnoreTarget;

// float32 logits over at most 64 channels, an exponential good to 1e-7, sums over the vocabulary.
inline constexpr double kFloatTolerance = 5e-6;
// Logits rounded to bf16 (absolute error up to 2^-9 of a logit of some units) and gradients rounded to bf16
// before the two products.
inline constexpr double kHalfTolerance = 1.5e-2;

inline at::Tensor make_targets(int64_t count, int64_t vocabulary, double ignored_share, uint64_t seed) {
  at::manual_seed(seed);
  const at::Tensor targets = at::randint(vocabulary, {count}, at::kLong);
  return at::where(at::rand({count}) < ignored_share, at::full({count}, kIgnoreTarget, at::kLong), targets);
}

inline OpCase make_case(const at::Tensor& targets, int64_t width, int64_t vocabulary,
                        double logit_scale = 1) {
  OpCase test;
  test.name = "linear_cross_entropy";
  test.input_names = {"x", "weight"};
  test.inputs = {logit_scale * normal({targets.size(0), width}, 1), 0.5 * normal({vocabulary, width}, 2)};
  test.weights = {1};
  test.op = [targets](const Tensors& i, const Tensors& s) {
    return Tensors{ops::linear_cross_entropy(i[0], {i[1], s[1]}, targets.to(i[0].device()))};
  };
  test.reference = [targets](const Tensors& i) {
    return Tensors{ops::linear_cross_entropy_ref(i[0], i[1], targets)};
  };
  return test;
}

}  // namespace osdn::test::linear_cross_entropy_test
