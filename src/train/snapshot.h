// Between the parameter arena and a checkpoint.
#pragma once

#include "checkpoint/checkpoint.h"
#include "optim/parameter_arena.h"
#include "train/state.h"

namespace osdn::train {

/// Host copies of weights and moments, and `state` with the run's description (`about`: configuration,
/// digests).
checkpoint::Snapshot take_snapshot(const optim::ParameterArena& arena, const TrainState& state,
                                   const Json& about);

/// Copies weights, and moments unless the checkpoint keeps weights only, into the arena. Throws DataError
/// naming the tensor when names or shapes differ from the model's.
void restore(const checkpoint::Loaded& loaded, optim::ParameterArena& arena);

/// Opens a step directory, a checkpoints directory or a run directory (its newest checkpoint), verified;
/// removes nothing, so a run may be training there. UserError when there is no checkpoint at that path.
checkpoint::Loaded open_checkpoint(const std::string& path);

/// Copies weights only (run.init_from, evaluation, generation).
void restore_weights(const checkpoint::Loaded& loaded, optim::ParameterArena& arena);

}  // namespace osdn::train
