// Calls of the norms that their tests share.
#pragma once

#include <vector>

#include "ops/rms_norm.h"
#include "tests/support/op_check.h"

namespace osdn::test::rms_norm_test {

inline constexpr double kEps = 1e-6;
// A few float32 roundings and a sum over the row; the weight gradient sums over the rows.
inline constexpr double kFloatTolerance = 2e-6;
// One rounding to the 8 bits of bf16.
inline constexpr double kHalfTolerance = 4e-3;

inline OpCase plain_case(int64_t rows, int64_t width) {
  OpCase test;
  test.name = "rms_norm";
  test.input_names = {"x", "weight"};
  test.inputs = {normal({rows, width}, 1), 1 + 0.3 * normal({width}, 2)};
  test.weights = {1};
  test.op = [](const Tensors& i, const Tensors& s) {
    return Tensors{ops::rms_norm(i[0], {i[1], s[1]}, kEps)};
  };
  test.reference = [](const Tensors& i) { return Tensors{ops::rms_norm_ref(i[0], i[1], kEps)}; };
  return test;
}

inline OpCase gated_case(int64_t rows, int64_t width, ops::GateActivation activation) {
  OpCase test;
  test.name = activation == ops::GateActivation::kSwish ? "gated_rms_norm swish" : "gated_rms_norm sigmoid";
  test.input_names = {"x", "gate", "weight"};
  test.inputs = {normal({rows, width}, 3), normal({rows, width}, 4), 1 + 0.3 * normal({width}, 5)};
  test.weights = {2};
  test.op = [activation](const Tensors& i, const Tensors& s) {
    return Tensors{ops::gated_rms_norm(i[0], i[1], {i[2], s[2]}, kEps, activation)};
  };
  test.reference = [activation](const Tensors& i) {
    return Tensors{ops::gated_rms_norm_ref(i[0], i[1], i[2], kEps, activation)};
  };
  return test;
}

inline OpCase add_case(int64_t rows, int64_t width) {
  OpCase test;
  test.name = "add_rms_norm";
  test.input_names = {"branch", "residual", "weight"};
  test.inputs = {normal({rows, width}, 6), normal({rows, width}, 7), 1 + 0.3 * normal({width}, 8)};
  test.weights = {2};
  test.op = [](const Tensors& i, const Tensors& s) {
    const auto out = ops::add_rms_norm(i[0], i[1], {i[2], s[2]}, kEps);
    return Tensors{out.normalized, out.sum};
  };
  test.reference = [](const Tensors& i) {
    const auto out = ops::add_rms_norm_ref(i[0], i[1], i[2], kEps);
    return Tensors{out.normalized, out.sum};
  };
  return test;
}

/// branch: there is one, else the norm of the stream as it comes, and the stream.
inline OpCase carry_case(int64_t rows, int64_t width, bool branch) {
  OpCase test;
  test.name = branch ? "carry_rms_norm" : "carry_rms_norm without a branch";
  test.input_names = {"residual", "weight"};
  test.inputs = {normal({rows, width}, 7), 1 + 0.3 * normal({width}, 8)};
  test.weights = {1};
  if (branch) {
    test.input_names.emplace_back("branch");
    test.inputs.push_back(normal({rows, width}, 6));
  }
  test.op = [branch](const Tensors& i, const Tensors& s) {
    const auto out = ops::carry_rms_norm(branch ? i[2] : at::Tensor(), i[0], {i[1], s[1]}, kEps);
    return Tensors{out.normalized, out.sum};
  };
  test.reference = [branch](const Tensors& i) {
    const auto out = ops::carry_rms_norm_ref(branch ? i[2] : at::Tensor(), i[0], i[1], kEps);
    return Tensors{out.normalized, out.sum};
  };
  return test;
}

inline std::vector<OpCase> all_cases(int64_t rows, int64_t width) {
  return {plain_case(rows, width),
          gated_case(rows, width, ops::GateActivation::kSwish),
          gated_case(rows, width, ops::GateActivation::kSigmoid),
          add_case(rows, width),
          carry_case(rows, width, true),
          carry_case(rows, width, false)};
}

}  // namespace osdn::test::rms_norm_test
