#include "model/mixers/delta_net.h"

#include <optional>
#include <string>

#include "base/error.h"
#include "model/preconditioner.h"
#include "ops/delta_rule.h"
#include "ops/linear.h"
#include "ops/residual_stats.h"
#include "ops/rms_norm.h"
#include "ops/short_conv.h"
#include "tensor/torch.h"

// N: packed tokens; D: hidden size; H: heads; K: head size (keys and values alike); E = H * K.

namespace osdn::model {
namespace {

std::string attn_prefix(int64_t layer) { return fmt::format("model.layers.{}.attn.", layer); }

class DeltaNet final : public Mixer {
 public:
  DeltaNet(const config::Model& config, int64_t layer, const WeightSource& weights)
      : num_heads_(config.num_heads),
        head_dim_(config.head_dim),
        norm_eps_(config.norm_eps),
        max_beta_(config::max_beta(config)) {
    const std::string prefix = attn_prefix(layer);
    const auto weight = [&](const char* name) { return weights(prefix + name); };
    in_proj_ = join(
        {weight("q_proj.weight"), weight("k_proj.weight"), weight("v_proj.weight"), weight("b_proj.weight")});
    conv_ = join({weight("q_conv1d.weight"), weight("k_conv1d.weight"), weight("v_conv1d.weight")});
    if (config.use_gate) gate_proj_ = weight("g_proj.weight");
    out_norm_ = weight("o_norm.weight");
    out_proj_ = weight("o_proj.weight");
    if (config.osdn) preconditioner_.emplace(*config.osdn, prefix, weights);
  }

  at::Tensor forward(const at::Tensor& x, MixerCall& call) const override {
    const int64_t width = num_heads_ * head_dim_;
    const at::Tensor projected = ops::linear(x, in_proj_);  // [N, 3E + H]
    const ops::ShortConvOutput conv =
        ops::short_conv({.x = projected.narrow(1, 0, 3 * width),
                         .weight = conv_,
                         .initial_state = call.state ? call.state->conv : at::Tensor(),
                         .sequences = call.sequences});
    const auto heads = [&](int64_t part) {
      return conv.y.narrow(1, part * width, width).unflatten(1, {num_heads_, head_dim_});
    };
    const at::Tensor q = heads(0);  // [N, H, K]
    const at::Tensor k = heads(1);
    const at::Tensor v = heads(2);

    // The sigmoid in the compute dtype, as the peer's DeltaNet has it; the ops take beta in fp32.
    at::Tensor beta = at::sigmoid(projected.narrow(1, 3 * width, num_heads_));  // [N, H]
    if (max_beta_ != 1.0) beta = beta * max_beta_;
    if (beta.scalar_type() != at::kDouble) beta = beta.to(at::kFloat);

    at::Tensor write_key;  // [N, H, K], undefined: k
    ops::PrecondScanOutput scan;
    if (preconditioner_) {
      scan = preconditioner_->forward({.x = x,
                                       .k = k,
                                       .beta = beta,
                                       .carried = call.state ? call.state->scale : at::Tensor(),
                                       .sequences = call.sequences,
                                       .collect_statistics = call.collect_statistics});
      write_key = scan.write_key;
      call.statistics = scan.statistics;
    } else if (call.collect_statistics) {
      call.statistics = ops::plain_residual_stats(k, beta, true);
    }
    const ops::DeltaRuleOutput rule =
        ops::delta_rule({.q = q,
                         .k = k,
                         .v = v,
                         .beta = beta,
                         .write_key = write_key,
                         .initial_state = call.state ? call.state->recurrent : at::Tensor(),
                         .sequences = call.sequences});
    if (call.state) {
      call.state->conv = conv.final_state.detach();
      call.state->scale = scan.final_d.defined() ? scan.final_d.detach() : at::Tensor();
      call.state->recurrent = rule.final_state.detach();
    }
    at::Tensor normalized;  // [N, H, K]
    if (gate_proj_.defined()) {
      const at::Tensor gate = ops::linear(x, gate_proj_).unflatten(1, {num_heads_, head_dim_});
      normalized = ops::gated_rms_norm(rule.o, gate, out_norm_, norm_eps_, ops::GateActivation::kSwish);
    } else {
      normalized = ops::rms_norm(rule.o, out_norm_, norm_eps_);
    }
    return ops::linear(normalized.flatten(1), out_proj_);
  }

 private:
  int64_t num_heads_;
  int64_t head_dim_;
  double norm_eps_;
  double max_beta_;
  Weight in_proj_;    // [3E + H, D]: q, k, v, beta
  Weight conv_;       // [3E, 1, W]: q, k, v
  Weight gate_proj_;  // [E, D], with use_gate
  Weight out_norm_;   // [K]
  Weight out_proj_;   // [D, E]
  std::optional<Preconditioner> preconditioner_;
};

}  // namespace

std::vector<ParameterSpec> delta_net_specs(const config::Model& config, int64_t layer, int64_t& group) {
  const std::string prefix = attn_prefix(layer);
  const int64_t hidden = config.hidden_size;
  const int64_t width = config.num_heads * config.head_dim;
  const double std_dev = config.initializer_range;
  std::vector<ParameterSpec> specs;
  const auto matrix = [&](const char* name, std::vector<int64_t> shape) {
    specs.push_back({.name = prefix + name, .shape = std::move(shape), .scale = std_dev, .group = group});
  };
  matrix("q_proj.weight", {width, hidden});
  matrix("k_proj.weight", {width, hidden});
  matrix("v_proj.weight", {width, hidden});
  matrix("b_proj.weight", {config.num_heads, hidden});
  ++group;
  for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"})
    matrix(name, {width, 1, config.conv_size});
  ++group;
  if (config.osdn) {
    for (ParameterSpec& spec :
         Preconditioner::specs(*config.osdn, prefix, hidden, config.num_heads, config.head_dim, group))
      specs.push_back(std::move(spec));
  }
  if (config.use_gate) {
    matrix("g_proj.weight", {width, hidden});
    ++group;
  }
  specs.push_back({.name = prefix + "o_norm.weight",
                   .shape = {config.head_dim},
                   .initializer = Initializer::kConstant,
                   .scale = 1.0,
                   .decay = false,
                   .full_precision = true,
                   .group = group++});
  matrix("o_proj.weight", {hidden, width});
  ++group;
  return specs;
}

std::unique_ptr<Mixer> make_delta_net(const config::Model& config, int64_t layer,
                                      const WeightSource& weights) {
  return std::make_unique<DeltaNet>(config, layer, weights);
}

}  // namespace osdn::model
