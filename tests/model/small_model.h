// A two-layer model of a few thousand parameters over its own arena, for tests of the model layer.
#pragma once

#include <memory>

#include "model/init.h"
#include "model/lm.h"
#include "optim/parameter_arena.h"
#include "tensor/torch.h"

namespace osdn::test {

inline constexpr int64_t kSmallVocab = 61;

inline config::Model small_config(bool osdn, bool own_gate) {
  config::Model model;
  model.hidden_size = 32;
  model.num_layers = 2;
  model.num_heads = 2;
  model.head_dim = 16;
  model.intermediate_size = 48;
  // Wide enough that beta and the residuals are far from their values at 0.
  model.initializer_range = 0.2;
  if (osdn) model.osdn = config::Osdn{};
  if (own_gate) model.osdn->retention = config::Retention::kOwnGate;
  return model;
}

class SmallModel {
 public:
  /// `training` false: an arena without gradients, as evaluation and generation have it.
  explicit SmallModel(const config::Model& config, at::Device device = at::kCPU, bool training = true)
      : arena_(std::make_unique<optim::ParameterArena>(
            model::parameter_specs(config, kSmallVocab),
            optim::ParameterArena::Options{.device = device, .training = training})) {
    for (const auto& slot : arena_->slots()) {
      at::Tensor values = at::empty(slot.spec.shape, at::kFloat);
      model::initialize(slot.spec, 42, values);
      arena_->master(slot.spec.name).copy_(values);
    }
    model_ = std::make_unique<model::LanguageModel>(config, kSmallVocab, arena_->source());
  }
  const model::LanguageModel& model() const { return *model_; }
  optim::ParameterArena& arena() { return *arena_; }

 private:
  std::unique_ptr<optim::ParameterArena> arena_;
  std::unique_ptr<model::LanguageModel> model_;
};

inline at::Tensor random_ids(int64_t count, uint64_t seed) {
  at::manual_seed(seed);
  return at::randint(0, kSmallVocab, {count}, at::kLong);
}

}  // namespace osdn::test
