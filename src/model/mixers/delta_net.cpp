#include "model/mixers/delta_net.h"

#include <string>

#include "base/error.h"
#include "model/delta_memory.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/short_conv.h"
#include "tensor/torch.h"

// N: packed tokens; D: hidden size; H: heads; K, V: head size of keys and values; S: sequences; W: taps.

namespace osdn::model {
namespace delta_net_detail {

at::Tensor activated(const at::Tensor& x, config::QkActivation activation) {
  switch (activation) {
    case config::QkActivation::kSilu:
      return at::silu(x);
    case config::QkActivation::kRelu:
      return at::relu(x);
    case config::QkActivation::kElu:
      return at::elu(x) + 1;
    case config::QkActivation::kIdentity:
      return x;
  }
  return x;
}

/// x over its sum per head; a head whose sum is 0 stays as it is.
at::Tensor over_sum(const at::Tensor& x) {
  const at::Tensor sum = ops::sum_last(x);
  return x / at::where(sum == 0, at::ones_like(sum), sum);
}

class DeltaNet final : public Mixer {
 public:
  DeltaNet(const config::Model& config, int64_t layer, const WeightSource& weights)
      : num_heads_(config.num_heads),
        key_dim_(config.head_dim),
        value_dim_(config::value_dim(config)),
        norm_eps_(config.norm_eps),
        max_beta_(config::max_beta(config)),
        qk_norm_(config.qk_norm),
        qk_activation_(config.qk_activation),
        memory_(config, mixer_prefix(layer), weights) {
    const std::string prefix = mixer_prefix(layer);
    const auto weight = [&](const char* name) { return weights(prefix + name); };
    in_proj_ = join(
        {weight("q_proj.weight"), weight("k_proj.weight"), weight("v_proj.weight"), weight("b_proj.weight")});
    qk_conv_ = join({weight("q_conv1d.weight"), weight("k_conv1d.weight")});
    v_conv_ = weight("v_conv1d.weight");
    conv_ = join({weight("q_conv1d.weight"), weight("k_conv1d.weight"), weight("v_conv1d.weight")});
    if (config::output_gate(config)) gate_proj_ = weight("g_proj.weight");
    out_norm_ = weight("o_norm.weight");
    out_proj_ = weight("o_proj.weight");
  }

  at::Tensor forward(const at::Tensor& x, MixerCall& call) const override {
    const Convolved convolved = convolve(ops::linear(x, in_proj_), call);
    at::Tensor q = convolved.q.unflatten(1, {num_heads_, key_dim_});  // [N, H, K]
    at::Tensor k = convolved.k.unflatten(1, {num_heads_, key_dim_});
    const at::Tensor v = convolved.v.unflatten(1, {num_heads_, value_dim_});  // [N, H, V]
    if (qk_norm_ == config::QkNorm::kSum) {
      q = over_sum(q);
      k = over_sum(k);
    }
    // The sigmoid in the compute dtype, as the peer's DeltaNet has it; the ops take beta in fp32.
    at::Tensor beta = at::sigmoid(convolved.beta);  // [N, H]
    if (max_beta_ != 1.0) beta = beta * max_beta_;
    if (beta.scalar_type() != at::kDouble) beta = beta.to(at::kFloat);

    const at::Tensor read =
        memory_.forward({.x = x, .q = q, .k = k, .v = v, .beta = beta}, call);  // [N, H, V]
    at::Tensor normalized;                                                      // [N, H, V]
    if (gate_proj_.defined()) {
      const at::Tensor gate = ops::linear(x, gate_proj_).unflatten(1, {num_heads_, value_dim_});
      normalized = ops::gated_rms_norm(read, gate, out_norm_, norm_eps_, ops::GateActivation::kSwish);
    } else {
      normalized = ops::rms_norm(read, out_norm_, norm_eps_);
    }
    return ops::linear(normalized.flatten(1), out_proj_);
  }

 private:
  struct Convolved {
    at::Tensor q;     // [N, HK]
    at::Tensor k;     // [N, HK]
    at::Tensor v;     // [N, HV]
    at::Tensor beta;  // [N, H] before the sigmoid, not convolved
  };

  // projected [N, 2HK + HV + H]
  Convolved convolve(const at::Tensor& projected, MixerCall& call) const {
    const int64_t keys = num_heads_ * key_dim_;
    const int64_t values = num_heads_ * value_dim_;
    const at::Tensor history = call.state ? call.state->conv : at::Tensor();  // [S, 2HK + HV, W]
    if (qk_activation_ == config::QkActivation::kSilu) {
      const ops::ShortConvOutput all = ops::short_conv({.x = projected,
                                                        .weight = conv_,
                                                        .initial_state = history,
                                                        .sequences = call.sequences,
                                                        .parts = {keys, keys, values},
                                                        .rest = num_heads_});
      if (call.state) call.state->conv = all.final_state.detach();
      return {.q = all.parts[0], .k = all.parts[1], .v = all.parts[2], .beta = all.rest};
    }
    // Queries and keys pass a linear convolution, then their own activation.
    const auto part = [&](const at::Tensor& whole, int64_t begin, int64_t end) {
      return whole.defined() ? whole.slice(1, begin, end) : whole;
    };
    const ops::ShortConvOutput qk = ops::short_conv({.x = part(projected, 0, 2 * keys),
                                                     .weight = qk_conv_,
                                                     .initial_state = part(history, 0, 2 * keys),
                                                     .sequences = call.sequences,
                                                     .silu = false});
    const ops::ShortConvOutput v =
        ops::short_conv({.x = part(projected, 2 * keys, 2 * keys + values),
                         .weight = v_conv_,
                         .initial_state = part(history, 2 * keys, 2 * keys + values),
                         .sequences = call.sequences});
    if (call.state) call.state->conv = at::cat({qk.final_state, v.final_state}, 1).detach();
    const at::Tensor active = activated(qk.y, qk_activation_);  // [N, 2HK]
    return {.q = active.narrow(1, 0, keys),
            .k = active.narrow(1, keys, keys),
            .v = v.y,
            .beta = projected.narrow(1, 2 * keys + values, num_heads_)};
  }

  int64_t num_heads_;
  int64_t key_dim_;
  int64_t value_dim_;
  double norm_eps_;
  double max_beta_;
  config::QkNorm qk_norm_;
  config::QkActivation qk_activation_;
  DeltaMemory memory_;
  Weight in_proj_;    // [2HK + HV + H, D]: q, k, v, beta
  Weight conv_;       // [2HK + HV, 1, W]: q, k, v
  Weight qk_conv_;    // [2HK, 1, W], its first rows
  Weight v_conv_;     // [HV, 1, W], its last rows
  Weight gate_proj_;  // [HV, D], with an output gate
  Weight out_norm_;   // [V]
  Weight out_proj_;   // [D, HV]
};

}  // namespace delta_net_detail

std::vector<ParameterSpec> delta_net_specs(const config::Model& config, int64_t layer, int64_t& group) {
  const std::string prefix = mixer_prefix(layer);
  const int64_t hidden = config.hidden_size;
  const int64_t keys = config.num_heads * config.head_dim;
  const int64_t values = config.num_heads * config::value_dim(config);
  std::vector<ParameterSpec> specs;
  const auto matrix = [&](const char* name, std::vector<int64_t> shape) {
    specs.push_back(matrix_spec(config, prefix + name, std::move(shape), group));
  };
  matrix("q_proj.weight", {keys, hidden});
  matrix("k_proj.weight", {keys, hidden});
  matrix("v_proj.weight", {values, hidden});
  matrix("b_proj.weight", {config.num_heads, hidden});
  ++group;
  matrix("q_conv1d.weight", {keys, 1, config.conv_size});
  matrix("k_conv1d.weight", {keys, 1, config.conv_size});
  matrix("v_conv1d.weight", {values, 1, config.conv_size});
  ++group;
  for (ParameterSpec& spec : DeltaMemory::specs(config, prefix, group)) specs.push_back(std::move(spec));
  if (config::output_gate(config)) {
    matrix("g_proj.weight", {values, hidden});
    ++group;
  }
  specs.push_back(norm_spec(prefix + "o_norm.weight", config::value_dim(config), group));
  matrix("o_proj.weight", {hidden, values});
  ++group;
  return specs;
}

std::unique_ptr<Mixer> make_delta_net(const config::Model& config, int64_t layer,
                                      const WeightSource& weights) {
  return std::make_unique<delta_net_detail::DeltaNet>(config, layer, weights);
}

}  // namespace osdn::model
