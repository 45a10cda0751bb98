// What every op with parameters does alike: checks of a Weight, the anchor that keeps its backward reachable,
// and the delivery of a weight gradient into the sink or back to autograd (docs/decisions, gradient sinks).
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>

#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn {

/// The dtype of statistics, sums and weight gradients: float64 for float64, float32 for everything else.
at::ScalarType accumulation_type(at::ScalarType type);

/// Throws UserError unless the value has this shape (-1 matches any extent), lies on the device of
/// `reference` in one of these dtypes, and its sink, if any, is contiguous and has the same shape, the
/// accumulation dtype and the device.
void check_weight(std::string_view op, std::string_view argument, const Weight& weight,
                  std::initializer_list<int64_t> shape, std::initializer_list<at::ScalarType> allowed,
                  const at::Tensor& reference);

/// An empty tensor that requires grad where the weight has a sink, else undefined: as an input of the
/// autograd function it makes backward run even when nothing else requires grad. Its own gradient is
/// undefined.
at::Tensor gradient_anchor(const Weight& weight);

/// A possibly undefined tensor as an input of an autograd function, which accepts no undefined tensors. An
/// absent one has no edge: it shifts the indices that needs_input_grad takes, so such inputs come last.
std::optional<at::Tensor> optional_input(const at::Tensor& tensor);

/// Adds to the sink, cast to its dtype, and returns undefined; without a sink returns the gradient in
/// `value_type`.
at::Tensor deliver_gradient(const at::Tensor& sink, const at::Tensor& gradient, at::ScalarType value_type);

/// Sum over the rows of [N, D] in the accumulation dtype: [D]. On CPU in blocks of a fixed size, added in
/// order, so that the bits do not depend on the number of threads.
at::Tensor sum_rows(const at::Tensor& rows);

}  // namespace osdn
