// Argument checks of the ops' public functions. Messages name op, argument, what was expected and what came,
// e.g. "delta_rule: beta: expected shape [1000, 4], got [4, 1000] (packed tokens first,
// docs/ops/delta_rule.md)".
#pragma once

#include <initializer_list>
#include <string_view>

#include "tensor/fwd.h"

namespace osdn {

/// Throws UserError unless `tensor` is defined and has this shape; -1 matches any extent.
void check_shape(std::string_view op, std::string_view argument, const at::Tensor& tensor,
                 std::initializer_list<int64_t> shape);

/// Throws UserError unless the dtype is one of these.
void check_dtype(std::string_view op, std::string_view argument, const at::Tensor& tensor,
                 std::initializer_list<at::ScalarType> allowed);

/// Throws UserError unless both tensors are on the same device.
void check_same_device(std::string_view op, std::string_view argument, const at::Tensor& tensor,
                       const at::Tensor& reference);

}  // namespace osdn
