#include "ops/linear_cross_entropy.h"

#include "base/error.h"
#include "ops/detail/linear_cross_entropy_paths.h"
#include "tests/ops/linear_cross_entropy_cases.h"

namespace osdn::test::linear_cross_entropy_test {

TEST_CASE("loss and gradients equal the reference and finite differences", "[linear_cross_entropy]") {
  const OpCase test = make_case(make_targets(8, 15, 0.3, 3), 10, 15);
  check_against_reference(test, at::kDouble, at::kCPU, 1e-12);
  check_against_reference(test, at::kFloat, at::kCPU, kFloatTolerance);
  check_against_reference(test, at::kBFloat16, at::kCPU, kHalfTolerance);
  check_finite_differences(test);
}

TEST_CASE("a large vocabulary, several chunks of rows, and logits scaled by 100", "[linear_cross_entropy]") {
  // 32,000 words leave 524 rows a chunk: 1,050 rows take three chunks, the last one short.
  const OpCase chunks = make_case(make_targets(1050, 32000, 0.3, 4), 4, 32000);
  check_against_reference(chunks, at::kFloat, at::kCPU, kFloatTolerance);
  check_sinks(chunks, at::kFloat, at::kCPU, 2 * kFloatTolerance);  // one rounded sum against another
  // Logits of some hundreds: float32 keeps them to 1e-5 absolute, and so the probabilities to 1e-5 relative.
  const OpCase large = make_case(make_targets(8, 15, 0.3, 5), 10, 15, 100);
  check_against_reference(large, at::kDouble, at::kCPU, 1e-10);
  check_against_reference(large, at::kFloat, at::kCPU, 1e-4);
}

TEST_CASE("ignored targets at the ends count nothing and get no gradient", "[linear_cross_entropy]") {
  at::Tensor targets = make_targets(6, 9, 0, 6);
  targets[0] = kIgnoreTarget;
  targets[5] = kIgnoreTarget;
  const OpCase test = make_case(targets, 5, 9);
  check_against_reference(test, at::kDouble, at::kCPU, 1e-12);
  const Tensors inputs = leaves(test.inputs, at::kFloat, at::kCPU);
  test.op(inputs, Tensors(2))[0].backward();
  CHECK(inputs[0].grad()[0].abs().max().item<float>() == 0);
  CHECK(inputs[0].grad()[5].abs().max().item<float>() == 0);
}

TEST_CASE("no target at all gives loss 0 and gradient 0", "[linear_cross_entropy]") {
  for (const int64_t rows : {0, 4}) {
    const OpCase test = make_case(at::full({rows}, kIgnoreTarget, at::kLong), 5, 9);
    const Tensors inputs = leaves(test.inputs, at::kFloat, at::kCPU);
    const at::Tensor sink = at::zeros({9, 5});
    const at::Tensor loss = ops::linear_cross_entropy(inputs[0], {inputs[1].detach(), sink},
                                                      at::full({rows}, kIgnoreTarget, at::kLong));
    CHECK(loss.item<float>() == 0);
    loss.backward();
    CHECK(inputs[0].grad().sizes() == inputs[0].sizes());
    CHECK(inputs[0].grad().abs().sum().item<float>() == 0);
    CHECK(sink.abs().sum().item<float>() == 0);
  }
}

TEST_CASE("the head adds its gradient to the sink at every backward", "[linear_cross_entropy]") {
  check_sinks(make_case(make_targets(40, 15, 0.3, 7), 10, 15), at::kDouble, at::kCPU, 1e-12);
}

TEST_CASE("the upstream factor scales the gradients", "[linear_cross_entropy]") {
  const OpCase test = make_case(make_targets(8, 15, 0.3, 3), 10, 15);
  Tensors grads[2];
  for (const bool scaled : {false, true}) {
    const Tensors inputs = leaves(test.inputs, at::kDouble, at::kCPU);
    (test.op(inputs, Tensors(2))[0] * (scaled ? 0.125 : 1.0)).backward();
    grads[scaled] = {inputs[0].grad(), inputs[1].grad()};
  }
  check_close("dx", grads[1][0], 0.125 * grads[0][0], 1e-14);
  check_close("dweight", grads[1][1], 0.125 * grads[0][1], 1e-14);
}

TEST_CASE("losses by row sum to the loss and are 0 where ignored", "[linear_cross_entropy]") {
  const at::Tensor targets = make_targets(30, 15, 0.3, 8);
  const OpCase test = make_case(targets, 10, 15);
  const at::Tensor rows = ops::linear_cross_entropy_rows(test.inputs[0], test.inputs[1], targets);
  CHECK_FALSE(rows.requires_grad());
  CHECK(rows.sum().item<double>() == Approx(test.reference(test.inputs)[0].item<double>()).epsilon(1e-12));
  CHECK(rows.masked_select(targets.eq(kIgnoreTarget)).abs().sum().item<double>() == 0);
  CHECK(rows.masked_select(targets.ne(kIgnoreTarget)).min().item<double>() > 0);
}

TEST_CASE("the softmax loops and their ATen form agree", "[linear_cross_entropy]") {
  namespace paths = ops::linear_cross_entropy_detail;
  const at::Tensor logits = 3 * normal({11, 37}, 1);
  const at::Tensor targets = make_targets(11, 37, 0.3, 2);
  const auto loops = paths::row_losses_cpu(logits, targets);
  const auto aten = paths::row_losses_aten(logits, targets);
  check_close("log_sum_exp", aten.log_sum_exp, loops.log_sum_exp, 1e-14);
  check_close("loss", aten.loss, loops.loss, 1e-13);
  const at::Tensor scale = at::scalar_tensor(0.25, at::kDouble);
  check_close("gradient", paths::logit_gradient_aten(logits.clone(), targets, loops.log_sum_exp, scale),
              paths::logit_gradient_cpu(logits.clone(), targets, loops.log_sum_exp, scale), 1e-13);
}

TEST_CASE("a NaN in the activations reaches the loss", "[linear_cross_entropy]") {
  const at::Tensor targets = make_targets(4, 15, 0, 3);
  const at::Tensor x = normal({4, 10}, 1, at::kFloat);
  x[2][3] = std::nan("");
  CHECK(
      std::isnan(ops::linear_cross_entropy(x, {normal({15, 10}, 2, at::kFloat), {}}, targets).item<float>()));
}

TEST_CASE("a target outside the vocabulary is refused by row and value", "[linear_cross_entropy]") {
  const at::Tensor x = normal({3, 4}, 1);
  const Weight weight{normal({6, 4}, 2), {}};
  CHECK(contains(message_of<UserError>([&] {
                   ops::linear_cross_entropy(x, weight, at::tensor({0, 6, 1}, at::kLong));
                 }),
                 "expected values in [0, 6) or -100 (ignored), got 6 in row 1"));
  CHECK(contains(message_of<UserError>([&] {
                   ops::linear_cross_entropy(x, weight, at::tensor({0, 1, -1}, at::kLong));
                 }),
                 "got -1 in row 2"));
}

TEST_CASE("the head on CUDA equals the reference", "[linear_cross_entropy][cuda]") {
  REQUIRE(at::hasCUDA());
  const OpCase small = make_case(make_targets(40, 15, 0.3, 3), 10, 15);
  check_against_reference(small, at::kFloat, at::kCUDA, kFloatTolerance);
  check_against_reference(small, at::kBFloat16, at::kCUDA, kHalfTolerance);
  check_sinks(small, at::kFloat, at::kCUDA, kFloatTolerance);
  const OpCase chunks = make_case(make_targets(1050, 32000, 0.3, 4), 8, 32000);
  check_against_reference(chunks, at::kFloat, at::kCUDA, kFloatTolerance);
}

}  // namespace osdn::test::linear_cross_entropy_test
