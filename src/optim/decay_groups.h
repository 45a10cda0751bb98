// Which parameters weight decay applies to, in words: printed when a run starts, so that a wrong group is
// seen before it costs anything.
#pragma once

#include <string>

#include "optim/parameter_arena.h"

namespace osdn::optim {

/// Names of the parameters of one group in arena order, with "*" for every layer number, each once, separated
/// by ", "; "none" when there are none.
struct DecayGroups {
  std::string decayed;
  std::string not_decayed;
  std::string not_trained;
};
DecayGroups decay_groups(const ParameterArena& arena, bool decay_all);

}  // namespace osdn::optim
