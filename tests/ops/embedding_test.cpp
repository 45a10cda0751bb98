#include "ops/embedding.h"

#include "base/error.h"
#include "tests/support/op_check.h"

namespace osdn::test::embedding_test {

// Rounding of float32 sums over the repetitions of one id.
constexpr double kFloatTolerance = 1e-6;

at::Tensor random_ids(int64_t count, int64_t vocabulary, uint64_t seed) {
  at::manual_seed(seed);
  return at::randint(vocabulary, {count}, at::kLong);
}

OpCase make_case(const at::Tensor& ids, int64_t vocabulary, int64_t width) {
  OpCase test;
  test.name = "embedding";
  test.input_names = {"weight"};
  test.inputs = {normal({vocabulary, width}, 1)};
  test.weights = {0};
  test.op = [ids](const Tensors& i, const Tensors& s) {
    return Tensors{ops::embedding(ids.to(i[0].device()), {i[0], s[0]})};
  };
  test.reference = [ids](const Tensors& i) { return Tensors{ops::embedding_ref(ids, i[0])}; };
  return test;
}

TEST_CASE("embedding and its gradient equal the reference and finite differences", "[embedding]") {
  const OpCase test = make_case(random_ids(13, 5, 2), 5, 3);  // every id repeats, some often
  check_against_reference(test, at::kDouble, at::kCPU, 1e-14);
  check_against_reference(test, at::kFloat, at::kCPU, kFloatTolerance);
  check_against_reference(test, at::kBFloat16, at::kCPU, 4e-3);  // one rounding to 8 bits at the end
  check_finite_differences(test);
}

TEST_CASE("embedding adds to its sink at every backward, with nothing else requiring grad", "[embedding]") {
  check_sinks(make_case(random_ids(200, 7, 3), 7, 130), at::kDouble, at::kCPU, 1e-13);
  check_sinks(make_case(random_ids(200, 7, 3), 7, 130), at::kFloat, at::kCPU, kFloatTolerance);
}

TEST_CASE("embedding's gradient has the same bits with any number of threads", "[embedding]") {
  check_thread_invariance(make_case(random_ids(3000, 17, 4), 17, 200));
}

TEST_CASE("embedding takes upstream gradients in any layout", "[embedding]") {
  check_upstream_layouts(make_case(random_ids(6, 4, 5), 4, 5));
}

TEST_CASE("embedding of no tokens is empty and adds nothing", "[embedding]") {
  const at::Tensor sink = at::zeros({4, 3});
  const at::Tensor y = ops::embedding(at::empty({0}, at::kLong), {normal({4, 3}, 1, at::kFloat), sink});
  CHECK(y.sizes() == at::IntArrayRef({0, 3}));
  y.sum().backward();
  CHECK(sink.abs().sum().item<float>() == 0);
}

TEST_CASE("embedding refuses ids outside the table", "[embedding]") {
  const Weight weight{at::zeros({4, 3}), {}};
  CHECK(contains(message_of<UserError>([&] {
                   ops::embedding(at::tensor({0, 4}, at::kLong), weight);
                 }),
                 "embedding: ids: expected values in [0, 4), got 4"));
  CHECK(contains(message_of<UserError>([&] {
                   ops::embedding(at::tensor({-1, 3}, at::kLong), weight);
                 }),
                 "got -1"));
  CHECK(contains(message_of<UserError>([&] { ops::embedding(at::zeros({2}, at::kInt), weight); }),
                 "expected dtype"));
}

TEST_CASE("embedding on CUDA equals the reference, with the same bits at every run", "[embedding][cuda]") {
  REQUIRE(at::hasCUDA());
  const OpCase test = make_case(random_ids(5000, 11, 6), 11, 64);
  // Longer sums than on CPU: 450 terms an id.
  check_against_reference(test, at::kFloat, at::kCUDA, 2 * kFloatTolerance);
  check_against_reference(test, at::kBFloat16, at::kCUDA, 4e-3);
  check_sinks(test, at::kFloat, at::kCUDA, 2 * kFloatTolerance);
  at::Tensor first;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const at::Tensor weight = test.inputs[0].to(at::kCUDA, at::kFloat);
    const at::Tensor sink = at::zeros_like(weight);
    const at::Tensor y = test.op({weight}, {sink})[0];
    y.backward(normal(y.sizes(), 7).to(at::kCUDA, at::kFloat));
    if (repeat == 0) first = sink;
    CHECK(at::equal(first, sink));
  }
}

}  // namespace osdn::test::embedding_test
