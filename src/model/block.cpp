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

Stream Block::finish(const at::Tensor& mixed, const at::Tensor& r) const {
  const ops::AddRmsNormOutput middle = ops::add_rms_norm(mixed, r, mlp_norm_, norm_eps_);
  return {.branch = ops::linear(ops::swiglu(ops::linear(middle.normalized, gate_up_)), down_),
          .residual = middle.sum};
}

Stream Block::whole(const Stream& stream, MixerCall& call) const {
  const ops::AddRmsNormOutput before =
      ops::carry_rms_norm(stream.branch, stream.residual, attn_norm_, norm_eps_);
  return finish(mixer_->forward(before.normalized, call), before.sum);
}

Stream Block::forward(const Stream& stream, MixerCall& call, config::Recompute recompute) const {
  // The repetition in backward wants gradients only: no statistics, no state.
  const MixerCall repeated{.sequences = call.sequences};
  switch (recompute) {
    case config::Recompute::kNone:
      return whole(stream, call);
    case config::Recompute::kMixer: {
      const ops::AddRmsNormOutput before =
          ops::carry_rms_norm(stream.branch, stream.residual, attn_norm_, norm_eps_);
      const at::Tensor mixed = run_and_recompute(
          before.normalized, [&](const at::Tensor& input) { return mixer_->forward(input, call); },
          [this, repeated](const at::Tensor& input) {
            MixerCall again = repeated;
            return mixer_->forward(input, again);
          });
      return finish(mixed, before.sum);
    }
    case config::Recompute::kBlock: {
      const auto sum = [](const Stream& s) {
        return s.branch.defined() ? s.branch + s.residual : s.residual;
      };
      return {
          .branch = {},
          .residual = run_and_recompute(
              sum(stream),
              [&](const at::Tensor& input) { return sum(whole({.branch = {}, .residual = input}, call)); },
              [this, repeated, sum](const at::Tensor& input) {
                MixerCall again = repeated;
                return sum(whole({.branch = {}, .residual = input}, again));
              })};
    }
  }
  return {};
}

}  // namespace osdn::model
