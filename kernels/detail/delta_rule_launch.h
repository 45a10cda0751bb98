// What the launchers of the delta rule share: the way from sizes to instantiations.
#pragma once

#include <type_traits>

#include "kernels/common/launch.h"
#include "kernels/delta_rule.h"

namespace osdn::kernels {

/// Calls `call(std::integral_constant<int, KP>)`.
template <typename Call>
void by_key_size(const DeltaRuleShape& shape, const Call& call) {
  if (delta_rule_padded_key_size(shape.key_size) == 64)
    call(std::integral_constant<int, 64>{});
  else
    call(std::integral_constant<int, 128>{});
}

}  // namespace osdn::kernels
