#include "ops/short_conv.h"

#include "base/error.h"
#include "ops/detail/short_conv_paths.h"
#include "tests/ops/short_conv_cases.h"

namespace osdn::test::short_conv_test {

TEST_CASE("pieces shorter than the window have exact gradients through both outputs", "[short_conv]") {
  for (const int64_t length : {1, 2, 3, 4, 5}) {
    const OpCase test = make_case({.offsets = {0, length}});
    check_against_reference(test, at::kDouble, at::kCPU, 1e-12);
    check_finite_differences(test);
  }
}

TEST_CASE("packed documents with and without history equal the reference", "[short_conv]") {
  for (const bool with_state : {true, false})
    for (const bool silu : {true, false})
      for (const int64_t taps : {1, 2, 3, 4, 7}) {
        const OpCase test = make_case(
            {.offsets = kPacked, .channels = 5, .taps = taps, .with_state = with_state, .silu = silu});
        check_against_reference(test, at::kDouble, at::kCPU, 1e-12);
        check_against_reference(test, at::kFloat, at::kCPU, kFloatTolerance);
        check_against_reference(test, at::kBFloat16, at::kCPU, kHalfTolerance);
      }
  check_finite_differences(make_case({.offsets = kPacked, .channels = 3}));
}

TEST_CASE("long sequences of every length equal the reference", "[short_conv]") {
  for (const int64_t length : {63, 64, 65, 127, 128, 129, 1000})
    check_against_reference(make_case({.offsets = {0, 3, 3 + length}, .channels = 20}), at::kFloat, at::kCPU,
                            kFloatTolerance);
}

TEST_CASE("the loops and the ATen form of the convolution agree", "[short_conv]") {
  namespace paths = ops::short_conv_detail;
  for (const bool with_state : {true, false})
    for (const bool silu : {true, false}) {
      const auto sequences = ops::Sequences::make(kPacked, at::kCPU);
      const paths::Inputs in{.x = normal({18, 6}, 1),
                             .taps = normal({4, 6}, 2),
                             .history = with_state ? normal({9, 6, 4}, 3) : at::Tensor(),
                             .sequences = sequences,
                             .silu = silu};
      const auto loops = paths::forward_cpu(in);
      const auto aten = paths::forward_aten(in);
      check_close("y", aten.y, loops.y, 1e-13);
      CHECK(at::equal(aten.final_state, loops.final_state));
      const at::Tensor dy = normal({18, 6}, 4);
      const at::Tensor dfinal = normal({9, 6, 4}, 5);
      const auto loops_back = paths::backward_cpu(in, dy, dfinal);
      const auto aten_back = paths::backward_aten(in, dy, dfinal);
      check_close("dx", aten_back.dx, loops_back.dx, 1e-13);
      check_close("dtaps", aten_back.dtaps, loops_back.dtaps, 1e-13);
      CHECK(aten_back.dhistory.defined() == with_state);
      if (with_state) check_close("dhistory", aten_back.dhistory, loops_back.dhistory, 1e-13);
    }
}

TEST_CASE("the convolution takes upstream gradients in any layout", "[short_conv]") {
  check_upstream_layouts(make_case({.offsets = kPacked, .channels = 6}));
  // The gradient of the final state, too: expanded by a sum, and as a transposed view.
  const OpCase test = make_case({.offsets = {0, 2, 7}, .channels = 6});
  for (const bool expanded : {true, false}) {
    const at::Tensor upstream = expanded ? at::ones({1, 1, 1}, at::kDouble).expand({2, 6, 4})
                                         : normal({4, 6, 2}, 9).permute({2, 1, 0});
    Tensors results[2];
    for (const bool contiguous : {false, true}) {
      const Tensors inputs = leaves(test.inputs, at::kDouble, at::kCPU);
      test.op(inputs, Tensors(3))[1].backward(contiguous ? upstream.contiguous() : upstream);
      results[contiguous] = {inputs[0].grad(), inputs[2].grad()};
    }
    CHECK(at::equal(results[0][0], results[1][0]));
    CHECK(at::equal(results[0][1], results[1][1]));
  }
}

TEST_CASE("the convolution reads strided inputs", "[short_conv]") {
  const at::Tensor wide = at::full({7, 20}, std::nan(""), at::kDouble);
  const at::Tensor x = wide.narrow(1, 6, 5);
  x.copy_(normal({7, 5}, 1));
  const Shape shape{.offsets = {0, 7}, .channels = 5, .with_state = false};
  const Tensors weight = {normal({5, 1, 4}, 2)};
  const auto from_view = ops::short_conv(make_args(shape, {x, weight[0]}, Tensors(2)));
  const auto from_copy = ops::short_conv(make_args(shape, {x.contiguous(), weight[0]}, Tensors(2)));
  CHECK(at::equal(from_view.y, from_copy.y));
  CHECK(at::equal(from_view.final_state, from_copy.final_state));
}

TEST_CASE("a sequence cut anywhere and carried on equals one pass", "[short_conv]") {
  const int64_t length = 512;
  const Shape whole{.offsets = {0, length}, .channels = 6, .with_state = false};
  const at::Tensor x = normal({length, 6}, 1);
  const at::Tensor weight = normal({6, 1, 4}, 2);
  const auto expected = ops::short_conv(make_args(whole, {x, weight}, Tensors(2)));
  const std::vector<std::vector<int64_t>> partitions = {
      {1}, {2}, {3}, {4}, {100}, {256}, {509}, {511}, {1, 2, 3, 50, 51, 300}};
  for (const std::vector<int64_t>& cuts : partitions) {
    Tensors pieces;
    at::Tensor state = at::zeros({1, 6, 4}, at::kDouble);
    std::vector<int64_t> bounds = cuts;
    bounds.push_back(length);
    int64_t begin = 0;
    for (const int64_t end : bounds) {
      const Shape piece{.offsets = {0, end - begin}, .channels = 6};
      const auto out =
          ops::short_conv(make_args(piece, {x.narrow(0, begin, end - begin), weight, state}, Tensors(3)));
      pieces.push_back(out.y);
      state = out.final_state;
      begin = end;
    }
    CHECK(at::equal(at::cat(pieces), expected.y));
    CHECK(at::equal(state, expected.final_state));
  }
}

TEST_CASE("a token is not reached by the tokens after it or by other documents", "[short_conv]") {
  const Shape shape{.offsets = {0, 5, 12}, .channels = 4, .with_state = false};
  const at::Tensor x = normal({12, 4}, 1);
  const at::Tensor weight = normal({4, 1, 4}, 2);
  const auto before = ops::short_conv(make_args(shape, {x, weight}, Tensors(2)));
  const at::Tensor changed = x.clone();
  changed.narrow(0, 3, 2).fill_(99);  // the end of the first document
  const auto after = ops::short_conv(make_args(shape, {changed, weight}, Tensors(2)));
  CHECK(at::equal(before.y.narrow(0, 0, 3), after.y.narrow(0, 0, 3)));
  CHECK(at::equal(before.y.narrow(0, 5, 7), after.y.narrow(0, 5, 7)));
  CHECK_FALSE(at::equal(before.y.narrow(0, 3, 2), after.y.narrow(0, 3, 2)));
}

TEST_CASE("the oldest slot of the initial state is never read", "[short_conv]") {
  const OpCase test = make_case({.offsets = {0, 3, 9}});
  Tensors inputs = test.inputs;
  const auto before = test.op(inputs, Tensors(3));
  inputs[2] = inputs[2].clone();
  inputs[2].select(2, 0).fill_(std::nan(""));
  const auto after = test.op(inputs, Tensors(3));
  CHECK(at::equal(before[0], after[0]));
  CHECK(at::equal(before[1], after[1]));
}

TEST_CASE("the convolution adds its tap gradient to the sink at every backward", "[short_conv]") {
  check_sinks(make_case({.offsets = kPacked}), at::kDouble, at::kCPU, 1e-13);
  check_sinks(make_case({.offsets = {0, 300}, .channels = 20}), at::kFloat, at::kCPU, kFloatTolerance);
}

TEST_CASE("the convolution has the same bits with any number of threads", "[short_conv]") {
  check_thread_invariance(make_case({.offsets = {0, 100, 357, 1000}, .channels = 30}));
}

TEST_CASE("the convolution accepts no tokens at all", "[short_conv]") {
  const OpCase test = make_case({.offsets = {0, 0, 0}});
  const Tensors inputs = leaves(test.inputs, at::kDouble, at::kCPU);
  const Tensors outputs = test.op(inputs, Tensors(3));
  CHECK(outputs[0].size(0) == 0);
  CHECK(at::equal(outputs[1], inputs[2]));  // an empty piece hands its state on
  outputs[1].sum().backward();
  CHECK(at::equal(inputs[2].grad(), at::ones_like(inputs[2])));
}

TEST_CASE("the convolution names what does not fit", "[short_conv]") {
  const Shape shape{.offsets = {0, 5}, .channels = 4, .with_state = false};
  const at::Tensor weight = normal({4, 1, 4}, 1);
  CHECK(contains(message_of<UserError>([&] {
                   ops::short_conv(make_args(shape, {normal({6, 4}, 1), weight}, Tensors(2)));
                 }),
                 "short_conv: sequences: expected offsets that end at 6 tokens, got 5"));
  CHECK(contains(message_of<UserError>([&] {
                   ops::short_conv(make_args(shape, {normal({5, 3}, 1), weight}, Tensors(2)));
                 }),
                 "short_conv: weight: expected shape [3, 1, *], got [4, 1, 4]"));
}

TEST_CASE("pieces of the convolution and columns handed through have exact gradients", "[short_conv]") {
  const Shape shape{.offsets = kPacked, .channels = 9, .parts = {4, 2, 3}, .rest = 2};
  const OpCase test = make_case(shape);
  check_against_reference(test, at::kDouble, at::kCPU, 1e-12);
  check_against_reference(test, at::kFloat, at::kCPU, kFloatTolerance);
  check_finite_differences(test);
  check_sinks(test, at::kDouble, at::kCPU, 1e-13);
  // Through one piece or the rest alone, so that the others bring no gradient.
  const size_t rest = 4;
  for (const size_t output : {size_t{0}, size_t{2}, rest}) {
    Tensors gradients[2];
    for (const bool reference : {false, true}) {
      const Tensors inputs = leaves(test.inputs, at::kDouble, at::kCPU);
      const Tensors outputs = reference ? test.reference(inputs) : test.op(inputs, Tensors(3));
      outputs[output].square().sum().backward();
      gradients[reference] = {inputs[0].grad()};
    }
    check_close("gradient of x", gradients[0][0], gradients[1][0], 1e-12);
  }
  CHECK(contains(message_of<UserError>([&] {
                   Shape wrong = shape;
                   wrong.parts = {4, 4};
                   make_case(wrong).op(test.inputs, Tensors(3));
                 }),
                 "short_conv: parts: expected widths that add up to 9, got 8"));
}

}  // namespace osdn::test::short_conv_test
