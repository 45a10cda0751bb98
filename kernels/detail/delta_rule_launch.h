// What the launchers of the delta rule share: the way from sizes to instantiations.
#pragma once

#include <type_traits>

#include "kernels/common/launch.h"
#include "kernels/delta_rule.h"

namespace osdn::kernels {

/// Calls `call(std::integral_constant<int, KP>)` for key sizes up to kDeltaRuleNarrowKeySize.
template <typename Call>
void by_key_size(const DeltaRuleShape& shape, const Call& call) {
  if (delta_rule_padded_key_size(shape.key_size) == 64)
    call(std::integral_constant<int, 64>{});
  else
    call(std::integral_constant<int, 128>{});
}

/// The same for every key size.
template <typename Call>
void by_any_key_size(const DeltaRuleShape& shape, const Call& call) {
  if (shape.key_size > kDeltaRuleNarrowKeySize)
    call(std::integral_constant<int, 256>{});
  else
    by_key_size(shape, call);
}

}  // namespace osdn::kernels
