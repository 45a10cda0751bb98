#include "ops/attention.h"

#include "base/error.h"
#include "tests/support/op_check.h"

namespace osdn::test::attention_op_test {

// Sums of up to a thousand float32 products.
constexpr double kFloatTolerance = 1e-5;
// bf16 probabilities, outputs and gradients.
constexpr double kHalfTolerance = 2e-2;

struct Shape {
  std::vector<int64_t> queries;  // offsets
  std::vector<int64_t> keys;
  int64_t heads = 4;
  int64_t key_heads = 2;
  int64_t head_dim = 8;
  int64_t window = 0;
};

OpCase make_case(const Shape& shape, at::Device device = at::kCPU) {
  OpCase test;
  test.name = "attention window " + std::to_string(shape.window);
  test.input_names = {"q", "k", "v"};
  const int64_t N = shape.queries.back();
  const int64_t M = shape.keys.back();
  test.inputs = {2 * normal({N, shape.heads, shape.head_dim}, 1),
                 normal({M, shape.key_heads, shape.head_dim}, 2),
                 normal({M, shape.key_heads, shape.head_dim}, 3)};
  const auto args = [shape](const Tensors& i, at::Device where) {
    return ops::AttentionArgs{.q = i[0],
                              .k = i[1],
                              .v = i[2],
                              .queries = ops::Sequences::make(shape.queries, where),
                              .keys = ops::Sequences::make(shape.keys, where),
                              .window_size = shape.window};
  };
  test.op = [args, device](const Tensors& i, const Tensors&) {
    return Tensors{ops::attention(args(i, device))};
  };
  test.reference = [args](const Tensors& i) { return Tensors{ops::attention_ref(args(i, at::kCPU))}; };
  return test;
}

std::vector<Shape> shapes() {
  return {
      {.queries = {0, 1}, .keys = {0, 1}},
      {.queries = {0, 5, 5, 12}, .keys = {0, 5, 5, 12}},
      {.queries = {0, 70, 75}, .keys = {0, 70, 75}, .window = 9},
      {.queries = {0, 3, 3, 4}, .keys = {0, 40, 47, 60}, .key_heads = 1},
      {.queries = {0, 66}, .keys = {0, 70}, .key_heads = 4, .window = 1},
  };
}

TEST_CASE("attention and its gradients equal the reference and finite differences", "[attention]") {
  for (const Shape& shape : shapes()) {
    check_against_reference(make_case(shape), at::kDouble, at::kCPU, 1e-12);
    check_against_reference(make_case(shape), at::kFloat, at::kCPU, kFloatTolerance);
    check_against_reference(make_case(shape), at::kBFloat16, at::kCPU, kHalfTolerance);
  }
  check_finite_differences(make_case({.queries = {0, 3, 7}, .keys = {0, 4, 9}, .head_dim = 4, .window = 3}));
}

TEST_CASE("attention sees nothing of later tokens, other documents and what lies before the window",
          "[attention]") {
  const auto sequences = ops::Sequences::make({0, 30, 50}, at::kCPU);
  const at::Tensor q = normal({50, 2, 8}, 1, at::kFloat);
  const at::Tensor k = normal({50, 2, 8}, 2, at::kFloat);
  const at::Tensor v = normal({50, 2, 8}, 3, at::kFloat);
  const auto run = [&](const at::Tensor& keys, const at::Tensor& values) {
    return ops::attention(
        {.q = q, .k = keys, .v = values, .queries = sequences, .keys = sequences, .window_size = 5});
  };
  const at::Tensor before = run(k, v);
  at::Tensor changed_k = k.clone();
  at::Tensor changed_v = v.clone();
  changed_k[20] = 1e4;
  changed_v[20] = 1e4;
  const at::Tensor after = run(changed_k, changed_v);
  // Only tokens 20 to 24 see token 20; a window of 5 and a document of 30 tokens hide it from the others.
  for (int64_t t = 0; t < 50; ++t) {
    INFO(t);
    if (t >= 30 || t < 20) CHECK(at::equal(before[t], after[t]));
    if (t >= 20 && t < 25) CHECK(!at::equal(before[t], after[t]));
  }
}

TEST_CASE("a sequence read in pieces gives the rows of one pass", "[attention]") {
  const at::Tensor q = normal({150, 4, 8}, 1, at::kFloat);
  const at::Tensor k = normal({150, 2, 8}, 2, at::kFloat);
  const at::Tensor v = normal({150, 2, 8}, 3, at::kFloat);
  const auto run = [&](int64_t begin, int64_t end) {
    return ops::attention({.q = q.slice(0, begin, end),
                           .k = k.slice(0, 0, end),
                           .v = v.slice(0, 0, end),
                           .queries = ops::Sequences::make({0, end - begin}, at::kCPU),
                           .keys = ops::Sequences::make({0, end}, at::kCPU)});
  };
  const at::Tensor whole = run(0, 150);
  for (const int64_t cut : {1, 64, 100, 149})
    check_close("pieces", at::cat({run(0, cut), run(cut, 150)}), whole, 1e-6);
}

TEST_CASE("attention takes upstream gradients in any layout and any number of threads", "[attention]") {
  const Shape shape{.queries = {0, 6}, .keys = {0, 6}, .heads = 4, .key_heads = 2, .head_dim = 2};
  OpCase flat = make_case(shape);
  const auto op = flat.op;
  flat.op = [op](const Tensors& i, const Tensors& sinks) { return Tensors{op(i, sinks)[0].flatten(1)}; };
  check_upstream_layouts(flat);
  check_thread_invariance(make_case({.queries = {0, 100, 130}, .keys = {0, 100, 130}}));
}

TEST_CASE("attention without tokens returns none", "[attention]") {
  const auto none = ops::Sequences::make({0, 0}, at::kCPU);
  const at::Tensor empty = at::zeros({0, 2, 4});
  CHECK(ops::attention({.q = empty, .k = empty, .v = empty, .queries = none, .keys = none}).size(0) == 0);
}

TEST_CASE("attention refuses heads and sequences that do not fit", "[attention]") {
  const auto three = ops::Sequences::make({0, 3}, at::kCPU);
  const auto two = ops::Sequences::make({0, 2}, at::kCPU);
  const auto message = [&](const ops::AttentionArgs& args) {
    return message_of<UserError>([&] { ops::attention(args); });
  };
  const at::Tensor x3 = at::zeros({3, 3, 4});
  CHECK(contains(
      message(
          {.q = x3, .k = at::zeros({3, 2, 4}), .v = at::zeros({3, 2, 4}), .queries = three, .keys = three}),
      "expected a divisor of the 3 query heads"));
  CHECK(contains(
      message({.q = x3, .k = at::zeros({2, 3, 4}), .v = at::zeros({2, 3, 4}), .queries = three, .keys = two}),
      "at least as many keys as queries"));
  CHECK(contains(message({.q = x3, .k = x3, .v = x3}), "sequences: expected"));
}

TEST_CASE("rotary equals the reference, keeps norms and depends on distance alone", "[attention]") {
  const at::Tensor x = normal({9, 2, 6}, 1);
  const at::Tensor positions = at::arange(9, at::kLong) * 100;
  check_close("rotary", ops::rotary(x, positions, 10000), ops::rotary_ref(x, positions, 10000), 1e-12);
  check_close("norm", ops::rotary(x, positions, 10000).norm(2, -1), x.norm(2, -1), 1e-12);
  const at::Tensor y = normal({9, 2, 6}, 2);
  const auto products = [&](int64_t shift) {
    return (ops::rotary(x, positions + shift, 500) * ops::rotary(y, positions + shift + 7, 500)).sum(-1);
  };
  check_close("distance", products(1234), products(0), 1e-9);
  const at::Tensor bf16 = x.to(at::kBFloat16);
  CHECK(ops::rotary(bf16, positions, 10000).scalar_type() == at::kBFloat16);
}

TEST_CASE("positions count from each sequence's start, or go on from what was read", "[attention]") {
  const auto sequences = ops::Sequences::make({0, 3, 3, 5}, at::kCPU);
  CHECK(at::equal(ops::positions_of(*sequences, {}, at::kCPU), at::tensor({0, 1, 2, 0, 1}, at::kLong)));
  CHECK(at::equal(ops::positions_of(*sequences, {10, 20, 30}, at::kCPU),
                  at::tensor({10, 11, 12, 30, 31}, at::kLong)));
}

TEST_CASE("attention on CUDA equals the reference", "[attention][cuda]") {
  REQUIRE(at::hasCUDA());
  for (const Shape& shape : shapes()) {
    check_against_reference(make_case(shape, at::kCUDA), at::kFloat, at::kCUDA, kFloatTolerance);
    check_against_reference(make_case(shape, at::kCUDA), at::kBFloat16, at::kCUDA, kHalfTolerance);
  }
}

}  // namespace osdn::test::attention_op_test
