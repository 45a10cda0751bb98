// What the gradients of a step lead to: an update of the weights, or a step that is skipped and counted.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "dist/communicator.h"
#include "metrics/step_record.h"
#include "optim/parameter_arena.h"
#include "train/data_parallel.h"
#include "train/state.h"

namespace osdn::train {

struct UpdateContext {
  const config::Optimizer& options;
  int64_t steps = 0;  // of the whole run: where the learning rate's schedule ends
  const optim::ParameterArena& arena;
  DataParallel& parallel;
  dist::Communicator& communicator;
};

/// By step, loss and norm of the record, the same on all ranks, whose learning rate, clipped and skipped it
/// fills in. Counts in `state`. `saved_step`: of the newest checkpoint or negative, for messages. UserError
/// when a step is not finite and may not be skipped, or too many were in a row.
void update_or_skip(metrics::StepRecord& record, TrainState& state, int64_t saved_step,
                    const UpdateContext& context);

}  // namespace osdn::train
