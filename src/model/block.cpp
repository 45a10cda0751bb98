#include "model/block.h"

#include "base/error.h"
#include "model/recompute.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"
#include "tensor/torch.h"

namespace osdn::model {

std::vector<ParameterSpec> Block::specs(const config::Model& config, int64_t layer, int64_t& group) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config::intermediate_size(config);
  const auto norm = [&](const char* name) {
    return ParameterSpec{.name = prefix + name,
                         .shape = {hidden},
                         .initializer = Initializer::kConstant,
                         .scale = 1.0,
                         .decay = false,
                         .full_precision = true,
                         .group = group++};
  };
  const auto matrix = [&](const char* name, int64_t rows, int64_t columns) {
    return ParameterSpec{
        .name = prefix + name, .shape = {rows, columns}, .scale = config.initializer_range, .group = group};
  };
  std::vector<ParameterSpec> specs;
  specs.push_back(norm("attn_norm.weight"));
  for (ParameterSpec& spec : mixer_specs(config, layer, group)) specs.push_back(std::move(spec));
  specs.push_back(norm("mlp_norm.weight"));
  specs.push_back(matrix("mlp.gate_proj.weight", inner, hidden));
  specs.push_back(matrix("mlp.up_proj.weight", inner, hidden));
  ++group;
  specs.push_back(matrix("mlp.down_proj.weight", hidden, inner));
  ++group;
  return specs;
}

Block::Block(const config::Model& config, int64_t layer, const WeightSource& weights)
    : norm_eps_(config.norm_eps), mixer_(make_mixer(config, layer, weights)) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  attn_norm_ = weights(prefix + "attn_norm.weight");
  mlp_norm_ = weights(prefix + "mlp_norm.weight");
  gate_up_ = join({weights(prefix + "mlp.gate_proj.weight"), weights(prefix + "mlp.up_proj.weight")});
  down_ = weights(prefix + "mlp.down_proj.weight");
}

at::Tensor Block::mix(const at::Tensor& r, MixerCall& call) const {
  return mixer_->forward(ops::rms_norm(r, attn_norm_, norm_eps_), call);
}

at::Tensor Block::finish(const at::Tensor& mixed, const at::Tensor& r) const {
  const ops::AddRmsNormOutput middle = ops::add_rms_norm(mixed, r, mlp_norm_, norm_eps_);
  return middle.sum + ops::linear(ops::swiglu(ops::linear(middle.normalized, gate_up_)), down_);
}

at::Tensor Block::forward(const at::Tensor& r, MixerCall& call, config::Recompute recompute) const {
  // The repetition in backward wants gradients only: no statistics, no state.
  const MixerCall repeated{.sequences = call.sequences};
  switch (recompute) {
    case config::Recompute::kNone:
      return finish(mix(r, call), r);
    case config::Recompute::kMixer:
      return finish(run_and_recompute(
                        r, [&](const at::Tensor& input) { return mix(input, call); },
                        [this, repeated](const at::Tensor& input) {
                          MixerCall again = repeated;
                          return mix(input, again);
                        }),
                    r);
    case config::Recompute::kBlock:
      return run_and_recompute(
          r, [&](const at::Tensor& input) { return finish(mix(input, call), input); },
          [this, repeated](const at::Tensor& input) {
            MixerCall again = repeated;
            return finish(mix(input, again), input);
          });
  }
  return {};
}

}  // namespace osdn::model
