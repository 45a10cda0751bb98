// Forward and backward of one global batch: micro-batches accumulate into the gradient arena; loss and
// residual sums come back as plain numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "data/loader.h"
#include "metrics/residual.h"
#include "tensor/fwd.h"
#include "train/passes.h"

namespace osdn::train {

struct StepOutcome {
  at::Tensor loss_sum;                 // scalar float64 on the device: summed target losses of this rank
  std::vector<at::Tensor> statistics;  // per micro-batch [layers, kNumResidualTerms] float64, where collected
  int64_t epoch = 0;                   // epoch of the first sample
  double data_wait_milliseconds = 0;
};

/// Runs the micro-batches of one step on this rank. Gradients are ADDED to the model's sinks; those that this
/// rank owns are then sums over the ranks.
StepOutcome run_step(Passes& passes, data::Loader& loader, bool collect_statistics);

/// Sums per layer over ranks and their micro-batches, in order. Each entry: the statistics of one rank's
/// micro-batches, one behind the other, [micro_batches, layers, kNumResidualTerms].
std::vector<metrics::ResidualSums> merge_statistics(const std::vector<std::vector<double>>& statistics,
                                                    int64_t num_layers);

}  // namespace osdn::train
