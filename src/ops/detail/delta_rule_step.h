// The delta rule where no sequence has more than one token and no gradient is wanted (docs/ops/delta_rule.md,
// "One token"): decoding, by a CUDA kernel of its own.
#pragma once

#include "ops/detail/delta_rule.h"

namespace osdn::ops::delta_rule_detail {

bool on_step_path(const Problem& problem);

/// q and k as given; `problem.normalize` says whether to normalise them. Keeps nothing for a backward.
Forward forward_step(const Problem& problem);

}  // namespace osdn::ops::delta_rule_detail
