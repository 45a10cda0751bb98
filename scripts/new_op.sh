#!/usr/bin/env bash
# Writes the files of a new op that returns its input: they compile, pass their tests and scripts/check_ops.sh, and show
# where everything goes (docs/howto/add_an_op.md).
#   scripts/new_op.sh NAME          e.g. scripts/new_op.sh leaky_norm
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
name=${1:-}
if [[ ! $name =~ ^[a-z][a-z0-9]*(_[a-z0-9]+)*$ ]]; then
  echo "usage: scripts/new_op.sh NAME, in snake_case, e.g. leaky_norm; got '$name'" >&2
  exit 2
fi
class=$(sed -E 's/(^|_)([a-z0-9])/\U\2/g' <<< "$name")
files="src/ops/$name.h src/ops/$name.cpp src/ops/${name}_ref.cpp tests/ops/${name}_test.cpp tests/bench/${name}_bench.cpp
  docs/ops/$name.md"
for file in $files; do
  if [[ -e $root/$file ]]; then
    echo "$file: exists already; choose another name or delete it" >&2
    exit 2
  fi
done

write() {  # FILE: standard input with NAME and CLASS replaced
  sed -e "s/@NAME@/$name/g" -e "s/@CLASS@/$class/g" > "$root/$1"
  echo "$1"
}

write "src/ops/$name.h" << 'END'
// y = x (docs/ops/@NAME@.md).
#pragma once

#include "tensor/fwd.h"

namespace osdn::ops {

/// x [N, D]. Returns [N, D] in the dtype of x. Differentiable in x.
at::Tensor @NAME@(const at::Tensor& x);
at::Tensor @NAME@_ref(const at::Tensor& x);

}  // namespace osdn::ops
END

write "src/ops/$name.cpp" << 'END'
#include "ops/@NAME@.h"

#include "tensor/check.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace @NAME@_detail {

class @CLASS@Function : public torch::autograd::Function<@CLASS@Function> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    ctx->set_materialize_grads(true);
    return x.clone();  // (eq. 1)
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*ctx*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0]};  // (eq. 2)
  }
};

}  // namespace @NAME@_detail

at::Tensor @NAME@(const at::Tensor& x) {
  check_shape("@NAME@", "x", x, {-1, -1});
  check_dtype("@NAME@", "x", x, {at::kFloat, at::kBFloat16, at::kDouble});
  return @NAME@_detail::@CLASS@Function::apply(x);
}

}  // namespace osdn::ops
END

write "src/ops/${name}_ref.cpp" << 'END'
#include "ops/@NAME@.h"
#include "tensor/torch.h"

namespace osdn::ops {

at::Tensor @NAME@_ref(const at::Tensor& x) { return x * 1; }

}  // namespace osdn::ops
END

write "tests/ops/${name}_test.cpp" << 'END'
#include "ops/@NAME@.h"

#include "base/error.h"
#include "tests/support/op_check.h"

namespace osdn::test::@NAME@_test {

// No rounding: a copy.
constexpr double kTolerance = 0;

OpCase make_case(int64_t rows, int64_t width) {
  OpCase test;
  test.name = "@NAME@";
  test.input_names = {"x"};
  test.inputs = {normal({rows, width}, 1)};
  test.op = [](const Tensors& i, const Tensors&) { return Tensors{ops::@NAME@(i[0])}; };
  test.reference = [](const Tensors& i) { return Tensors{ops::@NAME@_ref(i[0])}; };
  return test;
}

TEST_CASE("@NAME@ and its gradient equal the reference and finite differences", "[@NAME@]") {
  for (const int64_t rows : {1, 63, 64, 65, 1000})
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
      check_against_reference(make_case(rows, 5), type, at::kCPU, kTolerance);
  check_finite_differences(make_case(3, 4));
}

TEST_CASE("@NAME@ takes upstream gradients in any layout", "[@NAME@]") { check_upstream_layouts(make_case(6, 5)); }

TEST_CASE("@NAME@ has the same bits with any number of threads", "[@NAME@]") {
  check_thread_invariance(make_case(1000, 40));
}

TEST_CASE("@NAME@ names what does not fit", "[@NAME@]") {
  CHECK(contains(message_of<UserError>([] { ops::@NAME@(at::zeros({3})); }), "@NAME@: x: expected shape [*, *], got [3]"));
}

TEST_CASE("@NAME@ on CUDA equals the reference", "[@NAME@][cuda]") {
  REQUIRE(at::hasCUDA());
  check_against_reference(make_case(65, 5), at::kFloat, at::kCUDA, kTolerance);
  check_against_reference(make_case(65, 5), at::kBFloat16, at::kCUDA, kTolerance);
}

}  // namespace osdn::test::@NAME@_test
END

write "tests/bench/${name}_bench.cpp" << 'END'
#include "ops/@NAME@.h"

#include "tests/bench/differentiable.h"

namespace osdn::bench {
namespace @NAME@_bench {

std::vector<Case> make_cases(at::Device device) {
  const at::ScalarType dtype = training_dtype(device);
  const int64_t rows = device.is_cuda() ? 8192 : 4096;
  const int64_t width = device.is_cuda() ? 1024 : 256;
  const double bytes = static_cast<double>(rows * width) * (dtype == at::kFloat ? 4 : 2);
  DifferentiableOp op;
  op.shape = "N" + std::to_string(rows) + " D" + std::to_string(width);
  op.inputs = {random({rows, width}, dtype, device, 1)};
  op.op = [](const Tensors& i, const Tensors&) { return ops::@NAME@(i[0]); };
  op.reference = [](const Tensors& i) { return ops::@NAME@_ref(i[0]); };
  op.forward_bytes = 2 * bytes;
  op.backward_bytes = 2 * bytes;
  op.tolerance = dtype == at::kFloat ? 1e-6 : 4e-3;
  return forward_and_backward(op);
}

const Registrar kRegistrar("@NAME@", make_cases);

}  // namespace @NAME@_bench
}  // namespace osdn::bench
END

write "docs/ops/$name.md" << 'END'
# @NAME@

What it computes and who uses it. `x` [N, D], output `y` [N, D] in the dtype of `x`.

    y = x                                                 (1)
    dx = dy                                               (2)

Precision: where it rounds. Order: how sums are formed. Cost: elements read and written, operations.
END

# The length of the name decides where lines break.
if command -v clang-format > /dev/null; then
  (cd "$root" && clang-format -i $(tr ' ' '\n' <<< "$files" | grep -E '\.(h|cpp)$'))
fi
