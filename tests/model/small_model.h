// A two-layer model of a few thousand parameters over its own arena, for tests of the model layer.
#pragma once

#include <memory>
#include <string>
#include <vector>

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

/// Gated DeltaNet with keys narrower than the model, grouped value heads and wider values.
inline config::Model small_gated_delta_net() {
  config::Model model = small_config(false, false);
  model.backbone = config::Backbone::kGatedDeltaNet;
  model.head_dim = 8;
  model.num_value_heads = 4;
  model.value_expand = 1.5;
  return model;
}

inline config::Model small_kda() {
  config::Model model = small_config(false, false);
  model.backbone = config::Backbone::kKda;
  model.head_dim = 8;
  model.num_value_heads = 4;
  model.value_expand = 2;
  return model;
}

inline config::Model small_transformer() {
  config::Model model = small_config(false, false);
  model.backbone = config::Backbone::kTransformer;
  model.num_heads = 4;
  model.head_dim = 8;
  model.attention.num_kv_heads = 2;
  return model;
}

/// The model with OSDN at a step that moves d, and with this retention.
inline config::Model with_osdn(config::Model model, config::Retention retention) {
  model.osdn = config::Osdn{};
  model.osdn->retention = retention;
  // Far enough from 1 that what is forgotten shows within a hundred tokens.
  model.osdn->retention_bias = 2.0;
  return model;
}

struct Variant {
  std::string name;
  config::Model model;
};

/// Every backbone, plain and with each kind of OSDN, and the options that change what a layer computes.
inline std::vector<Variant> variants() {
  using config::Retention;
  std::vector<Variant> all;
  const auto family = [&](const std::string& name, const config::Model& plain, bool has_decay) {
    all.push_back({name, plain});
    all.push_back({name + " osdn", with_osdn(plain, Retention::kNone)});
    all.push_back({name + " osdn_apf", with_osdn(plain, Retention::kOwnGate)});
    if (has_decay) all.push_back({name + " state gate", with_osdn(plain, Retention::kStateGate)});
  };
  family("delta_net", small_config(false, false), false);
  family("gated_delta_net", small_gated_delta_net(), true);
  family("kda", small_kda(), true);
  config::Model options = small_config(false, false);
  options.qk_norm = config::QkNorm::kSum;
  options.qk_activation = config::QkActivation::kElu;
  options.use_gate = true;
  options.value_expand = 0.5;
  all.push_back({"delta_net sum elu", options});
  options = small_gated_delta_net();
  options.use_gate = false;
  options.allow_negative_eigenvalues = true;
  options.tie_embeddings = true;
  all.push_back({"gated_delta_net ungated negative tied", options});
  options = with_osdn(small_kda(), Retention::kNone);
  options.gate_lower_bound = -5;
  options.safe_gate = true;
  options.gate_low_rank = 5;
  all.push_back({"kda bounded", options});
  options = with_osdn(small_gated_delta_net(), Retention::kNone);
  options.attention.layers = {1};
  options.attention.num_heads = 4;
  options.attention.num_kv_heads = 2;
  options.attention.window_size = 7;
  all.push_back({"gated_delta_net hybrid window", options});
  all.push_back({"transformer", small_transformer()});
  options = small_transformer();
  options.attention.qkv_bias = true;
  options.attention.qk_norm = true;
  options.attention.window_size = 20;
  options.attention.rope_theta = 500;
  all.push_back({"transformer window bias norm", options});
  return all;
}

class SmallModel {
 public:
  /// `training` false: an arena without gradients, as evaluation and generation have it.
  explicit SmallModel(const config::Model& config, at::Device device = at::kCPU, bool training = true,
                      at::ScalarType compute = at::kFloat)
      : arena_(std::make_unique<optim::ParameterArena>(
            model::parameter_specs(config, kSmallVocab),
            optim::ParameterArena::Options{.device = device, .compute = compute, .training = training})) {
    for (const auto& slot : arena_->slots()) {
      at::Tensor values = at::empty(slot.spec.shape, at::kFloat);
      model::initialize(slot.spec, 42, values);
      arena_->master(slot.spec.name).copy_(values);
    }
    arena_->refresh_compute_copy();
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
