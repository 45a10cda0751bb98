#include "train/step.h"

#include <chrono>

#include "eval/validation.h"
#include "ops/residual_stats.h"
#include "tensor/torch.h"

namespace osdn::train {

StepOutcome run_step(const model::LanguageModel& model, data::Loader& loader, const StepPlan& plan,
                     DataParallel& parallel, bool collect_statistics) {
  using Clock = std::chrono::steady_clock;
  const at::Device device = parallel.communicator().device();
  StepOutcome outcome;
  outcome.loss_sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device));
  for (int64_t micro = 0; micro < plan.micro_batches; ++micro) {
    const auto start = Clock::now();
    const data::Batch batch = loader.next();
    outcome.data_wait_milliseconds += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    if (micro == 0) outcome.epoch = batch.epoch;

    const eval::DeviceBatch input = eval::to_device(batch, device);
    model::ForwardCall call{.sequences = input.sequences,
                            .collect_statistics = collect_statistics,
                            .recompute = plan.recompute,
                            .hooks = parallel.hooks(micro + 1 == plan.micro_batches)};
    const at::Tensor loss = model.loss(input.inputs, input.targets, call);
    torch::autograd::backward({loss / static_cast<double>(plan.global_targets)}, {});
    outcome.loss_sum += loss.detach().to(at::kDouble);
    if (!call.statistics.empty()) outcome.statistics.push_back(at::stack(call.statistics));
  }
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
