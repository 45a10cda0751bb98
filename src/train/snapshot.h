// Between the parameter arena and a checkpoint.
#pragma once

#include <functional>

#include "checkpoint/checkpoint.h"
#include "dist/communicator.h"
#include "optim/parameter_arena.h"
#include "train/state.h"

namespace osdn::train {

/// Host copies of what this rank writes of a checkpoint: rank 0 the weights and `state` with the run's
/// description (`about`: configuration, digests); every rank its moments where they are shared out, rank 0
/// all of them where not. `masters`: [arena.size()] fp32 on the host, on rank 0
/// (DataParallel::gather_masters).
checkpoint::Snapshot take_snapshot(const optim::ParameterArena& arena, const at::Tensor& masters,
                                   const dist::Communicator& communicator, const TrainState& state,
                                   const Json& about);

/// Puts the weights and moments that rank 0 has loaded where they belong on every rank; `loaded` is null on
/// the others. Throws DataError on rank 0, naming the tensor, when names or shapes differ from the model's.
void restore(const checkpoint::Loaded* loaded, optim::ParameterArena& arena,
             dist::Communicator& communicator);

/// Gives every parameter, on every rank, the value that rank 0 computes: fp32, its shape, on the CPU. What
/// rank 0 throws the others do not learn: everything that may fail comes before.
void share_weights(optim::ParameterArena& arena, dist::Communicator& communicator,
                   const std::function<at::Tensor(const ParameterSpec&)>& value);

/// The value of every parameter in a checkpoint. Throws DataError, naming the tensor, when names or shapes
/// differ from the model's.
std::function<at::Tensor(const ParameterSpec&)> weights_of(const checkpoint::Loaded& loaded,
                                                           const optim::ParameterArena& arena);

/// Opens a step directory, a checkpoints directory or a run directory (its newest checkpoint), verified;
/// removes nothing, so a run may be training there. UserError when there is no checkpoint at that path.
checkpoint::Loaded open_checkpoint(const std::string& path);

/// Copies weights only (evaluation, generation), in a process alone.
void restore_weights(const checkpoint::Loaded& loaded, optim::ParameterArena& arena);

}  // namespace osdn::train
