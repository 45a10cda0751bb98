// Activation recomputation: keeps only the input of a function and runs it again in backward.
#pragma once

#include <functional>

#include "tensor/fwd.h"

namespace osdn::model {

using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

/// Returns first(input), without keeping what lies between. Backward runs `again`, the same computation, on
/// the same input and differentiates it; weight gradients go to their sinks then. `again` outlives the call:
/// it captures by value. The result and all gradients have the bits of the plain computation.
at::Tensor run_and_recompute(const at::Tensor& input, const TensorFunction& first, TensorFunction again);

}  // namespace osdn::model
