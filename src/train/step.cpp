#include "train/step.h"

#include <chrono>

#include "eval/validation.h"
#include "ops/residual_stats.h"
#include "tensor/torch.h"

namespace osdn::train {

StepOutcome run_step(const model::LanguageModel& model, data::Loader& loader, const StepPlan& plan,
                     at::Device device, bool collect_statistics) {
  using Clock = std::chrono::steady_clock;
  StepOutcome outcome;
  outcome.loss_sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device));
  for (int64_t micro = 0; micro < plan.micro_batches; ++micro) {
    const auto start = Clock::now();
    const data::Batch batch = loader.next();
    outcome.data_wait_milliseconds += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    if (micro == 0) outcome.epoch = batch.epoch;

    const eval::DeviceBatch input = eval::to_device(batch, device);
    model::ForwardCall call{
        .sequences = input.sequences, .collect_statistics = collect_statistics, .recompute = plan.recompute};
    const at::Tensor loss = model.loss(input.inputs, input.targets, call);
    torch::autograd::backward({loss / static_cast<double>(plan.global_targets)}, {});
    outcome.loss_sum += loss.detach().to(at::kDouble);
    if (!call.statistics.empty()) outcome.statistics.push_back(at::stack(call.statistics));
  }
  return outcome;
}

std::vector<metrics::ResidualSums> merge_statistics(const std::vector<at::Tensor>& statistics) {
  std::vector<metrics::ResidualSums> layers;
  for (const at::Tensor& micro : statistics) {
    const at::Tensor host = micro.to(at::kCPU).contiguous();  // [layers, kNumResidualTerms]
    const double* values = host.data_ptr<double>();
    for (int64_t layer = 0; layer < host.size(0); ++layer) {
      const double* row = values + layer * ops::kNumResidualTerms;
      const auto sums = metrics::ResidualSums::from_terms({row, row + ops::kNumResidualTerms});
      if (static_cast<int64_t>(layers.size()) <= layer)
        layers.push_back(sums);
      else
        layers[static_cast<size_t>(layer)].add(sums);
    }
  }
  return layers;
}

}  // namespace osdn::train
