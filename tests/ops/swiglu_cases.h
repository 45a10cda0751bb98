// Calls of SwiGLU that its tests share.
#pragma once

#include "ops/swiglu.h"
#include "tests/support/op_check.h"

namespace osdn::test::swiglu_test {

// A few float32 roundings, with an exponential good to 1e-7.
inline constexpr double kFloatTolerance = 1e-6;
// One rounding to the 8 bits of bf16.
inline constexpr double kHalfTolerance = 4e-3;

inline OpCase make_case(int64_t rows, int64_t width) {
  OpCase test;
  test.name = "swiglu";
  test.input_names = {"gate_up"};
  test.inputs = {2 * normal({rows, 2 * width}, 1)};
  test.op = [](const Tensors& i, const Tensors&) { return Tensors{ops::swiglu(i[0])}; };
  test.reference = [](const Tensors& i) { return Tensors{ops::swiglu_ref(i[0])}; };
  return test;
}

}  // namespace osdn::test::swiglu_test
