#include "ops/linear.h"

#include <utility>

#include "base/error.h"
#include "tests/support/op_check.h"

namespace osdn::test::linear_test {

// Rounding of float32 sums over at most 64 terms.
constexpr double kFloatTolerance = 1e-6;
// A bf16 output keeps 8 bits: 2^-9 at most, about 2e-3 RMS.
constexpr double kHalfTolerance = 4e-3;

OpCase make_case(int64_t rows, int64_t in, int64_t out) {
  OpCase test;
  test.name = "linear";
  test.input_names = {"x", "weight", "bias"};
  test.inputs = {normal({rows, in}, 1), normal({out, in}, 2), normal({out}, 3)};
  test.weights = {1, 2};
  test.op = [](const Tensors& i, const Tensors& s) {
    return Tensors{ops::linear(i[0], {i[1], s[1]}, {i[2], s[2]})};
  };
  test.reference = [](const Tensors& i) { return Tensors{ops::linear_ref(i[0], i[1], i[2])}; };
  return test;
}

TEST_CASE("linear and its gradients equal the reference and finite differences", "[linear]") {
  const OpCase test = make_case(5, 7, 3);
  check_against_reference(test, at::kDouble, at::kCPU, 1e-13);
  check_against_reference(test, at::kFloat, at::kCPU, kFloatTolerance);
  check_against_reference(test, at::kBFloat16, at::kCPU, kHalfTolerance);
  check_finite_differences(test);
}

TEST_CASE("linear works at every number of rows", "[linear]") {
  for (const int64_t rows : {1, 63, 64, 65, 1000}) {
    const OpCase test = make_case(rows, 16, 24);
    check_against_reference(test, at::kFloat, at::kCPU, 2 * kFloatTolerance);
  }
}

TEST_CASE("linear adds its weight gradients to the sinks at every backward", "[linear]") {
  check_sinks(make_case(5, 7, 3), at::kDouble, at::kCPU, 1e-13);
  check_sinks(make_case(65, 16, 24), at::kFloat, at::kCPU, kFloatTolerance);
}

TEST_CASE("linear with bf16 activations accumulates its weight gradient unrounded", "[linear]") {
  const at::Tensor x = normal({130, 16}, 1).to(at::kBFloat16);
  const at::Tensor w = normal({8, 16}, 2).to(at::kBFloat16);
  const at::Tensor dy = normal({130, 8}, 3).to(at::kBFloat16);
  const at::Tensor sink = at::zeros({8, 16});
  ops::linear(x, {w, sink}).backward(dy);
  const at::Tensor expected = dy.to(at::kDouble).t().mm(x.to(at::kDouble));
  check_close("sink", sink, expected, kFloatTolerance);  // rounded to bf16 it would be off by 2e-3
}

TEST_CASE("linear takes upstream gradients in any layout", "[linear]") {
  check_upstream_layouts(make_case(6, 5, 4));
}

TEST_CASE("linear without rows gives nothing and a zero gradient", "[linear]") {
  const at::Tensor x = at::zeros({0, 4}).set_requires_grad(true);
  const at::Tensor sink = at::zeros({3, 4});
  const at::Tensor y = ops::linear(x, {normal({3, 4}, 1, at::kFloat), sink});
  CHECK(y.sizes() == at::IntArrayRef({0, 3}));
  y.sum().backward();
  CHECK(x.grad().sizes() == at::IntArrayRef({0, 4}));
  CHECK(sink.abs().sum().item<float>() == 0);
}

TEST_CASE("without gradients a row has the same bits whatever the other rows and the threads are",
          "[linear]") {
  const int num_threads = at::get_num_threads();
  for (const at::ScalarType type : {at::kFloat, at::kDouble})
    for (const auto& [in, out] : {std::pair{1, 1}, {7, 3}, {16, 33}, {100, 70}, {257, 130}}) {
      const at::Tensor x = normal({131, in}, 1, type);
      const Weight weight{.value = normal({out, in}, 2, type), .sink = {}};
      const Weight bias{.value = normal({out}, 3, type), .sink = {}};
      const at::Tensor all = ops::linear(x, weight, bias);
      check_close("y", all, ops::linear_ref(x, weight.value, bias.value),
                  type == at::kFloat ? kFloatTolerance : 1e-13);
      at::set_num_threads(1);
      for (const int64_t rows : {1, 2, 3, 4, 5, 64, 67})
        for (const int64_t first : {0, 1, 63, 64})
          CHECK(at::equal(ops::linear(x.narrow(0, first, rows), weight, bias), all.narrow(0, first, rows)));
      at::set_num_threads(num_threads);
    }
  // Strided rows of a fused buffer, and no rows at all.
  const at::Tensor wide = normal({9, 40}, 4, at::kFloat);
  const Weight weight{.value = normal({5, 16}, 5, at::kFloat), .sink = {}};
  CHECK(at::equal(ops::linear(wide.narrow(1, 8, 16), weight),
                  ops::linear(wide.narrow(1, 8, 16).contiguous(), weight)));
  CHECK(ops::linear(wide.narrow(0, 0, 0).narrow(1, 0, 16), weight).sizes() == at::IntArrayRef({0, 5}));
}

TEST_CASE("linear names what does not fit", "[linear]") {
  const at::Tensor x = at::zeros({2, 4});
  CHECK(contains(message_of<UserError>([&] {
                   ops::linear(x, {at::zeros({3, 5}), {}});
                 }),
                 "linear: weight: expected shape [*, 4], got [3, 5]"));
  CHECK(contains(message_of<UserError>([&] {
                   ops::linear(x, {at::zeros({3, 4}, at::kDouble), {}});
                 }),
                 "linear: weight: expected dtype Float, got Double"));
  CHECK(contains(message_of<UserError>([&] {
                   ops::linear(x, {at::zeros({3, 4}), at::zeros({4, 3})});
                 }),
                 "linear: weight: the gradient sink"));
}

TEST_CASE("linear on CUDA equals the reference and accumulates in fp32 into the sink", "[linear][cuda]") {
  REQUIRE(at::hasCUDA());
  check_against_reference(make_case(65, 16, 24), at::kFloat, at::kCUDA,
                          kFloatTolerance);  // float32 stays float32
  check_against_reference(make_case(65, 16, 24), at::kBFloat16, at::kCUDA, kHalfTolerance);
  check_sinks(make_case(65, 16, 24), at::kFloat, at::kCUDA, kFloatTolerance);
  const at::Tensor x = normal({4096, 64}, 1).to(at::kCUDA, at::kBFloat16);
  const at::Tensor w = normal({32, 64}, 2).to(at::kCUDA, at::kBFloat16);
  const at::Tensor dy = normal({4096, 32}, 3).to(at::kCUDA, at::kBFloat16);
  const at::Tensor sink = at::zeros({32, 64}, x.options().dtype(at::kFloat));
  for (int pass = 0; pass < 2; ++pass) ops::linear(x, {w, sink}).backward(dy);
  // fp32 sums of 4096 products, which tensor cores truncate as they go; one rounding to bf16 would cost 2e-3.
  check_close("sink", sink, 2 * dy.to(at::kDouble).t().mm(x.to(at::kDouble)), 1e-5);
}

}  // namespace osdn::test::linear_test
