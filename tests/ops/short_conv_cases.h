// Calls of the short convolution that its tests share.
#pragma once

#include <string>
#include <vector>

#include "ops/short_conv.h"
#include "tests/support/op_check.h"

namespace osdn::test::short_conv_test {

// Four products, a SiLU good to 1e-7; the tap gradient sums over the tokens.
inline constexpr double kFloatTolerance = 2e-6;
// One rounding to the 8 bits of bf16.
inline constexpr double kHalfTolerance = 4e-3;

struct Shape {
  std::vector<int64_t> offsets;
  int64_t channels = 8;
  int64_t taps = 4;
  bool with_state = true;
  bool silu = true;
  std::vector<int64_t> parts = {};
  int64_t rest = 0;
};

inline ops::ShortConvArgs make_args(const Shape& shape, const Tensors& inputs, const Tensors& sinks) {
  ops::ShortConvArgs args;
  args.x = inputs[0];
  args.weight = {inputs[1], sinks[1]};
  if (shape.with_state) args.initial_state = inputs[2];
  args.sequences = ops::Sequences::make(shape.offsets, inputs[0].device());
  args.silu = shape.silu;
  args.parts = shape.parts;
  args.rest = shape.rest;
  return args;
}

inline OpCase make_case(const Shape& shape) {
  OpCase test;
  test.name = "short_conv";
  for (const int64_t offset : shape.offsets) test.name += " " + std::to_string(offset);
  const auto num_sequences = static_cast<int64_t>(shape.offsets.size()) - 1;
  test.input_names = {"x", "weight"};
  test.inputs = {normal({shape.offsets.back(), shape.channels + shape.rest}, 1),
                 normal({shape.channels, 1, shape.taps}, 2)};
  if (shape.with_state) {
    test.input_names.emplace_back("initial_state");
    test.inputs.push_back(normal({num_sequences, shape.channels, shape.taps}, 3));
  }
  test.weights = {1};
  const auto all_of = [](const ops::ShortConvOutput& out) {
    Tensors outputs = out.parts;
    if (out.y.defined()) outputs.push_back(out.y);
    outputs.push_back(out.final_state);
    if (out.rest.defined()) outputs.push_back(out.rest);
    return outputs;
  };
  test.op = [shape, all_of](const Tensors& i, const Tensors& s) {
    return all_of(ops::short_conv(make_args(shape, i, s)));
  };
  test.reference = [shape, all_of](const Tensors& i) {
    return all_of(ops::short_conv_ref(make_args(shape, i, Tensors(i.size()))));
  };
  return test;
}

// Empty and single-token documents, at the ends and in the middle, and some shorter than the window.
inline const std::vector<int64_t> kPacked = {0, 0, 1, 4, 4, 6, 13, 17, 18, 18};

}  // namespace osdn::test::short_conv_test
