#include "model/mixers/kda.h"

#include <optional>
#include <string>

#include "model/delta_memory.h"
#include "ops/decay_gate.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/short_conv.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

// N: packed tokens; D: hidden size; H, HV: key and value heads; K, V: their sizes; R: rank of the gates; W:
// taps.

namespace osdn::model {
namespace kda_detail {

class Kda final : public Mixer {
 public:
  Kda(const config::Model& config, int64_t layer, const WeightSource& weights)
      : num_heads_(config.num_heads),
        num_value_heads_(config::num_value_heads(config)),
        key_dim_(config.head_dim),
        value_dim_(config::value_dim(config)),
        rank_(config::gate_low_rank(config)),
        norm_eps_(config.norm_eps),
        max_beta_(config::max_beta(config)),
        lower_bound_(config.gate_lower_bound),
        memory_(config, mixer_prefix(layer), weights) {
    const std::string prefix = mixer_prefix(layer);
    const auto weight = [&](const char* name) { return weights(prefix + name); };
    in_proj_ = join({weight("q_proj.weight"), weight("k_proj.weight"), weight("v_proj.weight"),
                     weight("f_proj.0.weight"), weight("g_proj.0.weight"), weight("b_proj.weight")});
    decay_up_ = weight("f_proj.1.weight");
    gate_up_ = weight("g_proj.1.weight");
    gate_bias_ = weight("g_proj.1.bias");
    conv_ = join({weight("q_conv1d.weight"), weight("k_conv1d.weight"), weight("v_conv1d.weight")});
    log_rate_ = weight("A_log");
    step_bias_ = weight("dt_bias");
    out_norm_ = weight("o_norm.weight");
    out_proj_ = weight("o_proj.weight");
  }

  at::Tensor forward(const at::Tensor& x, MixerCall& call) const override {
    const int64_t keys = num_heads_ * key_dim_;
    const int64_t values = num_value_heads_ * value_dim_;
    const at::Tensor projected = ops::linear(x, in_proj_);  // [N, 2HK + HV V + 2R + HV]
    const ops::ShortConvOutput conv =
        ops::short_conv({.x = projected,
                         .weight = conv_,
                         .initial_state = call.state ? call.state->conv : at::Tensor(),
                         .sequences = call.sequences,
                         .parts = {keys, keys, values},
                         .rest = 2 * rank_ + num_value_heads_});
    if (call.state) call.state->conv = conv.final_state.detach();
    const at::ScalarType wide = accumulation_type(x.scalar_type());
    at::Tensor beta = at::sigmoid(conv.rest.narrow(1, 2 * rank_, num_value_heads_).to(wide));  // [N, HV]
    if (max_beta_ != 1.0) beta = beta * max_beta_;
    const at::Tensor f = ops::linear(conv.rest.narrow(1, 0, rank_), decay_up_);  // [N, HV K]
    const at::Tensor log_decay = ops::decay_gate({.a = f.unflatten(1, {num_value_heads_, key_dim_}),
                                                  .log_rate = log_rate_,
                                                  .bias = step_bias_,
                                                  .lower_bound = lower_bound_,
                                                  .rounded = true});  // [N, HV, K]

    const at::Tensor read = memory_.forward({.x = x,
                                             .q = conv.parts[0].unflatten(1, {num_heads_, key_dim_}),
                                             .k = conv.parts[1].unflatten(1, {num_heads_, key_dim_}),
                                             .v = conv.parts[2].unflatten(1, {num_value_heads_, value_dim_}),
                                             .beta = beta,
                                             .log_decay = log_decay},
                                            call);  // [N, HV, V]
    const at::Tensor gate =
        ops::linear(conv.rest.narrow(1, rank_, rank_), gate_up_, gate_bias_);  // [N, HV V]
    const at::Tensor normalized = ops::gated_rms_norm(read, gate.unflatten(1, {num_value_heads_, value_dim_}),
                                                      out_norm_, norm_eps_, ops::GateActivation::kSigmoid);
    return ops::linear(normalized.flatten(1), out_proj_);
  }

 private:
  int64_t num_heads_;
  int64_t num_value_heads_;
  int64_t key_dim_;
  int64_t value_dim_;
  int64_t rank_;
  double norm_eps_;
  double max_beta_;
  std::optional<double> lower_bound_;
  DeltaMemory memory_;
  Weight in_proj_;    // [2HK + HV V + 2R + HV, D]: q, k, v, decay, output gate, beta
  Weight decay_up_;   // [HV K, R]
  Weight gate_up_;    // [HV V, R]
  Weight gate_bias_;  // [HV V]
  Weight conv_;       // [2HK + HV V, 1, W]: q, k, v
  Weight log_rate_;   // [HV] fp32
  Weight step_bias_;  // [HV K] fp32
  Weight out_norm_;   // [V]
  Weight out_proj_;   // [D, HV V]
};

}  // namespace kda_detail

std::vector<ParameterSpec> kda_specs(const config::Model& config, int64_t layer, int64_t& group) {
  const std::string prefix = mixer_prefix(layer);
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config::num_value_heads(config);
  const int64_t keys = config.num_heads * config.head_dim;
  const int64_t values = heads * config::value_dim(config);
  const int64_t rank = config::gate_low_rank(config);
  std::vector<ParameterSpec> specs;
  const auto matrix = [&](const char* name, std::vector<int64_t> shape) {
    specs.push_back(matrix_spec(config, prefix + name, std::move(shape), group));
  };
  const auto vector = [&](const char* name, int64_t size, Initializer initializer, double low, double high) {
    specs.push_back(vector_spec(prefix + name, size, initializer, low, high, group));
  };
  matrix("q_proj.weight", {keys, hidden});
  matrix("k_proj.weight", {keys, hidden});
  matrix("v_proj.weight", {values, hidden});
  matrix("f_proj.0.weight", {rank, hidden});
  matrix("g_proj.0.weight", {rank, hidden});
  matrix("b_proj.weight", {heads, hidden});
  ++group;
  matrix("f_proj.1.weight", {heads * config.head_dim, rank});
  ++group;
  if (config.safe_gate)
    vector("A_log", heads, Initializer::kConstant, 0, 0);
  else
    vector("A_log", heads, Initializer::kLogUniform, 1, 16);
  vector("dt_bias", heads * config.head_dim, Initializer::kInverseSoftplus, 0.001, 0.1);
  matrix("q_conv1d.weight", {keys, 1, config.conv_size});
  matrix("k_conv1d.weight", {keys, 1, config.conv_size});
  matrix("v_conv1d.weight", {values, 1, config.conv_size});
  ++group;
  for (ParameterSpec& spec : DeltaMemory::specs(config, prefix, group)) specs.push_back(std::move(spec));
  matrix("g_proj.1.weight", {values, rank});
  ++group;
  vector("g_proj.1.bias", values, Initializer::kConstant, 0, 0);
  specs.push_back(norm_spec(prefix + "o_norm.weight", config::value_dim(config), group));
  matrix("o_proj.weight", {hidden, values});
  ++group;
  return specs;
}

std::unique_ptr<Mixer> make_kda(const config::Model& config, int64_t layer, const WeightSource& weights) {
  return std::make_unique<kda_detail::Kda>(config, layer, weights);
}

}  // namespace osdn::model
