#include "model/mixers/gated_delta_net.h"

#include <string>

#include "model/delta_memory.h"
#include "ops/decay_gate.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/short_conv.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

// N: packed tokens; D: hidden size; H, HV: key and value heads; K, V: their sizes; W: taps.

namespace osdn::model {
namespace gated_delta_net_detail {

class GatedDeltaNet final : public Mixer {
 public:
  GatedDeltaNet(const config::Model& config, int64_t layer, const WeightSource& weights)
      : num_heads_(config.num_heads),
        num_value_heads_(config::num_value_heads(config)),
        key_dim_(config.head_dim),
        value_dim_(config::value_dim(config)),
        norm_eps_(config.norm_eps),
        max_beta_(config::max_beta(config)),
        output_gate_(config::output_gate(config)),
        memory_(config, mixer_prefix(layer), weights) {
    const std::string prefix = mixer_prefix(layer);
    const auto weight = [&](const char* name) { return weights(prefix + name); };
    std::vector<Weight> wide = {weight("q_proj.weight"), weight("k_proj.weight"), weight("v_proj.weight")};
    if (output_gate_) wide.push_back(weight("g_proj.weight"));
    in_proj_ = join(wide);
    gates_proj_ = join({weight("a_proj.weight"), weight("b_proj.weight")});
    conv_ = join({weight("q_conv1d.weight"), weight("k_conv1d.weight"), weight("v_conv1d.weight")});
    log_rate_ = weight("A_log");
    step_bias_ = weight("dt_bias");
    out_norm_ = weight("o_norm.weight");
    out_proj_ = weight("o_proj.weight");
  }

  at::Tensor forward(const at::Tensor& x, MixerCall& call) const override {
    const int64_t keys = num_heads_ * key_dim_;
    const int64_t values = num_value_heads_ * value_dim_;
    const at::Tensor projected = ops::linear(x, in_proj_);  // [N, 2HK + HV V (+ HV V)]
    const ops::ShortConvOutput conv =
        ops::short_conv({.x = projected,
                         .weight = conv_,
                         .initial_state = call.state ? call.state->conv : at::Tensor(),
                         .sequences = call.sequences,
                         .parts = {keys, keys, values},
                         .rest = output_gate_ ? values : 0});
    if (call.state) call.state->conv = conv.final_state.detach();
    const at::Tensor gates = ops::linear(x, gates_proj_);  // [N, 2HV]: decay, beta
    const at::ScalarType wide = accumulation_type(x.scalar_type());
    at::Tensor beta = at::sigmoid(gates.narrow(1, num_value_heads_, num_value_heads_).to(wide));  // [N, HV]
    if (max_beta_ != 1.0) beta = beta * max_beta_;
    const at::Tensor log_decay = ops::decay_gate(
        {.a = gates.narrow(1, 0, num_value_heads_), .log_rate = log_rate_, .bias = step_bias_});  // [N, HV]

    const at::Tensor read = memory_.forward({.x = x,
                                             .q = conv.parts[0].unflatten(1, {num_heads_, key_dim_}),
                                             .k = conv.parts[1].unflatten(1, {num_heads_, key_dim_}),
                                             .v = conv.parts[2].unflatten(1, {num_value_heads_, value_dim_}),
                                             .beta = beta,
                                             .log_decay = log_decay},
                                            call);  // [N, HV, V]
    const at::Tensor normalized =
        output_gate_ ? ops::gated_rms_norm(read, conv.rest.unflatten(1, {num_value_heads_, value_dim_}),
                                           out_norm_, norm_eps_, ops::GateActivation::kSwish)
                     : ops::rms_norm(read, out_norm_, norm_eps_);
    return ops::linear(normalized.flatten(1), out_proj_);
  }

 private:
  int64_t num_heads_;
  int64_t num_value_heads_;
  int64_t key_dim_;
  int64_t value_dim_;
  double norm_eps_;
  double max_beta_;
  bool output_gate_;
  DeltaMemory memory_;
  Weight in_proj_;     // [2HK + HV V (+ HV V), D]: q, k, v, output gate
  Weight gates_proj_;  // [2HV, D]: decay, beta; apart, so that rows of the wide product stay aligned
  Weight conv_;        // [2HK + HV V, 1, W]: q, k, v
  Weight log_rate_;    // [HV] fp32
  Weight step_bias_;   // [HV] fp32
  Weight out_norm_;    // [V]
  Weight out_proj_;    // [D, HV V]
};

}  // namespace gated_delta_net_detail

std::vector<ParameterSpec> gated_delta_net_specs(const config::Model& config, int64_t layer, int64_t& group) {
  const std::string prefix = mixer_prefix(layer);
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config::num_value_heads(config);
  const int64_t keys = config.num_heads * config.head_dim;
  const int64_t values = heads * config::value_dim(config);
  std::vector<ParameterSpec> specs;
  const auto matrix = [&](const char* name, std::vector<int64_t> shape) {
    specs.push_back(matrix_spec(config, prefix + name, std::move(shape), group));
  };
  const auto gate = [&](const char* name, Initializer initializer, double low, double high) {
    specs.push_back(vector_spec(prefix + name, heads, initializer, low, high, group));
  };
  matrix("q_proj.weight", {keys, hidden});
  matrix("k_proj.weight", {keys, hidden});
  matrix("v_proj.weight", {values, hidden});
  if (config::output_gate(config)) matrix("g_proj.weight", {values, hidden});
  ++group;
  matrix("a_proj.weight", {heads, hidden});
  matrix("b_proj.weight", {heads, hidden});
  ++group;
  gate("A_log", Initializer::kLogUniform, 0, 16);
  gate("dt_bias", Initializer::kInverseSoftplus, 0.001, 0.1);
  matrix("q_conv1d.weight", {keys, 1, config.conv_size});
  matrix("k_conv1d.weight", {keys, 1, config.conv_size});
  matrix("v_conv1d.weight", {values, 1, config.conv_size});
  ++group;
  for (ParameterSpec& spec : DeltaMemory::specs(config, prefix, group)) specs.push_back(std::move(spec));
  specs.push_back(norm_spec(prefix + "o_norm.weight", config::value_dim(config), group));
  matrix("o_proj.weight", {hidden, values});
  ++group;
  return specs;
}

std::unique_ptr<Mixer> make_gated_delta_net(const config::Model& config, int64_t layer,
                                            const WeightSource& weights) {
  return std::make_unique<gated_delta_net_detail::GatedDeltaNet>(config, layer, weights);
}

}  // namespace osdn::model
