// The CUDA kernel of the loss against the reference in float64 on the CPU.
#include "ops/detail/linear_cross_entropy_paths.h"
#include "tests/ops/linear_cross_entropy_cases.h"
#include "tests/support/poison.h"

namespace osdn::test::linear_cross_entropy_cuda_test {

using namespace linear_cross_entropy_test;  // the cases

const at::Device kDevice(at::kCUDA, 0);

TEST_CASE("the loss kernel equals float64 at vocabularies of every size",
          "[linear_cross_entropy_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const int64_t vocabulary = GENERATE(1, 2, 15, 400, 512, 1025, 2000, 32000, 50257, 100000, 151936);
  CAPTURE(vocabulary);
  const OpCase test = make_case(make_targets(37, vocabulary, 0.3, 3), 16, vocabulary);
  check_against_reference(test, at::kFloat, kDevice, kFloatTolerance);
  check_against_reference(test, at::kBFloat16, kDevice, kHalfTolerance);
  check_sinks(test, at::kFloat, kDevice, 2 * kFloatTolerance);  // one rounded sum against another
}

TEST_CASE("the loss kernel equals float64 with ignored rows first, last and everywhere, and large logits",
          "[linear_cross_entropy_cuda][cuda]") {
  const PoisonedMemory poisoned;
  at::Tensor ends = make_targets(8, 15, 0.0, 4);
  ends[0] = kIgnoreTarget;
  ends[7] = kIgnoreTarget;
  check_against_reference(make_case(ends, 10, 15), at::kFloat, kDevice, kFloatTolerance);
  check_against_reference(make_case(at::full({8}, kIgnoreTarget, at::kLong), 10, 15), at::kFloat, kDevice,
                          kFloatTolerance);
  // Logits of some hundreds: float32 keeps them to 1e-5 absolute, and so the probabilities to 1e-5 relative.
  check_against_reference(make_case(make_targets(8, 15, 0.3, 5), 10, 15, 100), at::kFloat, kDevice, 1e-4);
  check_against_reference(make_case(make_targets(0, 15, 0.3, 5), 10, 15), at::kFloat, kDevice,
                          kFloatTolerance);
}

TEST_CASE("the loss scales both gradients by what it is multiplied with",
          "[linear_cross_entropy_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const at::Tensor targets = make_targets(50, 400, 0.3, 6);
  OpCase test = make_case(targets, 32, 400);
  const auto op = test.op;
  const auto reference = test.reference;
  test.op = [op](const Tensors& i, const Tensors& s) { return Tensors{op(i, s)[0] / 37.0}; };
  test.reference = [reference](const Tensors& i) { return Tensors{reference(i)[0] / 37.0}; };
  check_against_reference(test, at::kFloat, kDevice, kFloatTolerance);
  check_against_reference(test, at::kBFloat16, kDevice, kHalfTolerance);
  check_sinks(test, at::kBFloat16, kDevice, kHalfTolerance);
}

TEST_CASE("rows of the loss are those of its sum, without gradients", "[linear_cross_entropy_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const at::Tensor targets = make_targets(300, 2001, 0.2, 7);
  const at::Tensor x = normal({300, 64}, 8).to(at::kBFloat16);
  const at::Tensor weight = normal({2001, 64}, 9).to(at::kBFloat16);
  const at::Tensor rows =
      ops::linear_cross_entropy_rows(x.to(kDevice), weight.to(kDevice), targets.to(kDevice));
  const at::Tensor expected =
      ops::linear_cross_entropy_rows(x.to(at::kDouble), weight.to(at::kDouble), targets);
  check_close("rows", rows, expected, kHalfTolerance);
  const at::Tensor sum =
      ops::linear_cross_entropy(x.to(kDevice), {weight.to(kDevice), {}}, targets.to(kDevice));
  CHECK(sum.item<double>() == Approx(rows.to(at::kDouble).sum().item<double>()));
}

TEST_CASE("a target outside the vocabulary makes the loss NaN and reads nothing out of bounds",
          "[linear_cross_entropy_cuda][cuda]") {
  const at::Tensor x = normal({3, 16}, 1).to(kDevice, at::kFloat);
  const at::Tensor weight = normal({40, 16}, 2).to(kDevice, at::kFloat);
  for (const int64_t wrong : {int64_t{40}, int64_t{-1}, int64_t{1} << 40}) {
    const at::Tensor targets = at::tensor({int64_t{5}, wrong, int64_t{39}}, at::kLong).to(kDevice);
    const at::Tensor rows = ops::linear_cross_entropy_rows(x, weight, targets).cpu();
    CHECK(std::isnan(rows[1].item<float>()));
    CHECK(std::isfinite(rows[0].item<float>()));
    CHECK(std::isfinite(rows[2].item<float>()));
  }
}

// The last 32 of `rows` rows of logits against ATen; the others are zeros.
void check_in_place(int64_t rows, int64_t vocabulary) {
  namespace paths = ops::linear_cross_entropy_detail;
  const at::TensorOptions options = at::TensorOptions(kDevice).dtype(at::kBFloat16);
  at::manual_seed(1);
  const at::Tensor logits = at::zeros({rows, vocabulary}, options);
  const at::Tensor last = at::randn({32, vocabulary}, options);
  logits.narrow(0, rows - 32, 32).copy_(last);
  const at::Tensor targets = at::randint(vocabulary, {rows}, options.dtype(at::kLong));
  const at::Tensor loss = at::empty({rows}, options.dtype(at::kFloat));
  const at::Tensor scale = at::full({}, 0.5, options.dtype(at::kFloat));
  paths::softmax_kernel(logits, targets, loss, /*gradient=*/true, scale);
  const at::Tensor target = targets.narrow(0, rows - 32, 32);
  const auto expected = paths::row_losses_aten(last, target);
  check_close("loss", loss.narrow(0, rows - 32, 32), expected.loss, kFloatTolerance);
  check_close("gradient", logits.narrow(0, rows - 32, 32),
              paths::logit_gradient_aten(last, target, expected.log_sum_exp, scale),
              1e-3);  // both rounded to bf16
}

TEST_CASE("the gradient of the loss in place equals ATen's", "[linear_cross_entropy_cuda][cuda]") {
  for (const int64_t vocabulary : {400, 2000, 32000, 50264, 70000}) check_in_place(40, vocabulary);
}

TEST_CASE("the gradient of the loss in place equals ATen's at the end of more than 2^31 logits",
          "[linear_cross_entropy_cuda][cuda]") {
  check_in_place((int64_t{1} << 31) / 32000 + 33, 32000);
}

TEST_CASE("the loss gives the same bits every time", "[linear_cross_entropy_cuda][cuda]") {
  const at::Tensor targets = make_targets(1000, 5000, 0.1, 3).to(kDevice);
  const at::Tensor x = normal({1000, 256}, 1).to(kDevice, at::kBFloat16).set_requires_grad(true);
  const at::Tensor weight = normal({5000, 256}, 2).to(kDevice, at::kBFloat16);
  Tensors first;
  for (int run = 0; run < 3; ++run) {
    x.mutable_grad() = at::Tensor();
    const at::Tensor sink = at::zeros({5000, 256}, x.options().dtype(at::kFloat).requires_grad(false));
    const at::Tensor loss = ops::linear_cross_entropy(x, {weight, sink}, targets);
    loss.backward();
    const Tensors results = {loss, x.grad(), sink};
    if (first.empty()) first = results;
    for (size_t i = 0; i < results.size(); ++i) CHECK(at::equal(results[i], first[i]));
  }
}

}  // namespace osdn::test::linear_cross_entropy_cuda_test
