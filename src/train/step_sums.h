// What the ranks tell each other at the end of a step's backward pass.
#pragma once

#include <optional>
#include <vector>

#include "base/error.h"
#include "dist/communicator.h"
#include "optim/parameter_arena.h"
#include "train/data_parallel.h"
#include "train/step.h"

namespace osdn::train {

/// What a rank sees by itself, and what all make of it.
struct Decisions {
  std::optional<ExitCode> stop;  // a signal asks for it: on any rank
  bool minutes_up = false;       // a checkpoint is due by the clock: of rank 0
};

struct StepSums {
  double loss = 0;                              // of all targets of the global batch
  double squares = 0;                           // of all elements of its gradient
  std::vector<std::vector<double>> statistics;  // by rank, as merge_statistics takes them
  int64_t num_layers = 0;                       // that measured residuals
  Decisions decisions;
};

/// One small collective, which everything goes through that must be equal on all ranks: what they do next
/// follows from it alone, whatever a rank sees by itself. Sums in the order of ranks. After
/// finish_gradients(); blocks.
StepSums add_up(const StepOutcome& outcome, const Decisions& own, const optim::ParameterArena& arena,
                const DataParallel& parallel, dist::Communicator& communicator);

}  // namespace osdn::train
