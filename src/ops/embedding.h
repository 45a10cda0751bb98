// Row lookup with the gradient added into the sink in a fixed order, without atomics (docs/ops/embedding.md).
#pragma once

#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::ops {

/// ids [N] int64 in [0, V); weight [V, D]. Returns [N, D]. With a sink the result still requires grad, so
/// that the backward of the whole model reaches it.
at::Tensor embedding(const at::Tensor& ids, const Weight& weight);
at::Tensor embedding_ref(const at::Tensor& ids, const at::Tensor& weight);

}  // namespace osdn::ops
