// AdamW with decoupled weight decay, in one pass over what this process owns of the arena
// (docs/ops/adamw.md).
#pragma once

#include "optim/parameter_arena.h"

namespace osdn::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-15;
  double weight_decay = 0.1;
};

/// One update of masters and moments, and of the compute copy. `update` counts the updates made so far
/// including this one
/// (>= 1; skipped steps do not count), `gradient_scale` multiplies the gradients (clipping). In place, no
/// allocation.
void adamw_step(ParameterArena& arena, const AdamWOptions& options, double learning_rate, int64_t update,
                double gradient_scale);

/// The same of one of the arena's owned ranges; all of them make a step.
void adamw_step(ParameterArena& arena, const ParameterArena::OwnedRange& range, const AdamWOptions& options,
                double learning_rate, int64_t update, double gradient_scale);

}  // namespace osdn::optim
