// Initial values of parameters, counter-based on (seed, tensor name, element): the same whatever the order,
// the number of threads or ranks, and the device.
#pragma once

#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::model {

/// Fills `values`, a contiguous fp32 CPU tensor of the spec's shape.
void initialize(const ParameterSpec& spec, int64_t seed, at::Tensor values);

}  // namespace osdn::model
