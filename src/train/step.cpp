#include "train/step.h"

#include <chrono>

#include "ops/residual_stats.h"
#include "tensor/torch.h"

namespace osdn::train {

StepOutcome run_step(Passes& passes, data::Loader& loader, bool collect_statistics) {
  using Clock = std::chrono::steady_clock;
  StepOutcome outcome;
  passes.begin_step();
  const int64_t micro_batches = passes.options().micro_batches;
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    const auto start = Clock::now();
    const data::Batch batch = loader.next();
    outcome.data_wait_milliseconds += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    if (micro == 0) outcome.epoch = batch.epoch;
    const at::Tensor statistics = passes.run(batch, micro, collect_statistics);
    if (statistics.defined()) outcome.statistics.push_back(statistics);
  }
  outcome.loss_sum = passes.loss_sum();
  return outcome;
}

std::vector<metrics::ResidualSums> merge_statistics(const std::vector<std::vector<double>>& statistics,
                                                    int64_t num_layers) {
  std::vector<metrics::ResidualSums> layers;
  for (const std::vector<double>& rank : statistics) {
    const auto num_rows = static_cast<int64_t>(rank.size()) / ops::kNumResidualTerms;
    for (int64_t row = 0; row < num_rows; ++row) {
      const double* terms = rank.data() + row * ops::kNumResidualTerms;
      const auto sums = metrics::ResidualSums::from_terms({terms, terms + ops::kNumResidualTerms});
      const auto layer = static_cast<size_t>(row % num_layers);
      if (layers.size() <= layer)
        layers.push_back(sums);
      else
        layers[layer].add(sums);
    }
  }
  return layers;
}

}  // namespace osdn::train
