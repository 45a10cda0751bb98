// Forward and backward of one global batch: micro-batches accumulate into the gradient arena; loss and
// residual sums come back as plain numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "data/loader.h"
#include "metrics/residual.h"
#include "model/lm.h"
#include "tensor/fwd.h"
#include "train/data_parallel.h"

namespace osdn::train {

struct StepPlan {
  int64_t micro_batches = 1;   // calls of the loader a step, on this rank
  int64_t global_targets = 0;  // target tokens of the global batch: what loss and gradient are divided by
  config::Recompute recompute = config::Recompute::kNone;
};

struct StepOutcome {
  at::Tensor loss_sum;                 // scalar float64 on the device: summed target losses of this rank
  std::vector<at::Tensor> statistics;  // per micro-batch [layers, kNumResidualTerms] float64, where collected
  int64_t epoch = 0;                   // epoch of the first sample
  double data_wait_milliseconds = 0;
};

/// Runs the micro-batches of one step on this rank. Gradients of loss_sum / global_targets are ADDED to the
/// model's sinks and summed over the ranks (DataParallel::finish_gradients completes it).
StepOutcome run_step(const model::LanguageModel& model, data::Loader& loader, const StepPlan& plan,
                     DataParallel& parallel, bool collect_statistics);

/// Sums per layer over ranks and their micro-batches, in order. Each entry: the statistics of one rank's
/// micro-batches, one behind the other, [micro_batches, layers, kNumResidualTerms].
std::vector<metrics::ResidualSums> merge_statistics(const std::vector<std::vector<double>>& statistics,
                                                    int64_t num_layers);

}  // namespace osdn::train
