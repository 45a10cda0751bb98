#include "model/preconditioner.h"

#include <cmath>

#include "base/error.h"
#include "ops/linear.h"
#include "tensor/torch.h"

namespace osdn::model {
namespace {

ops::PrecondScanOptions scan_options(const config::Osdn& osdn) {
  return {.step_size = osdn.step_size,
          .box_min = osdn.box[0],
          .box_max = osdn.box[1],
          .rule = osdn.hypergradient == config::Hypergradient::kBetaAware ? ops::HypergradientRule::kBetaAware
                                                                          : ops::HypergradientRule::kBetaFree,
          .anchored = osdn.anchored,
          .divide_by_key_norm = osdn.divide_by_key_norm,
          .detach = osdn.detach,
          .clamp_initial = osdn.clamp_initial_scale,
          .l2_normalize = true};
}

}  // namespace

std::vector<ParameterSpec> Preconditioner::specs(const config::Osdn& osdn, const std::string& prefix,
                                                 int64_t hidden_size, int64_t num_value_heads,
                                                 int64_t head_dim, int64_t& group) {
  // d0 and the gate keep out of generic initialisation and weight decay: decay pulls towards 0, the wrong
  // anchor.
  std::vector<ParameterSpec> specs;
  specs.push_back({.name = prefix + "initial_scale",
                   .shape = {num_value_heads, head_dim},
                   .initializer = Initializer::kConstant,
                   .scale = osdn.initial_scale,
                   .decay = false,
                   .full_precision = true,
                   .trainable = osdn.learn_initial_scale,
                   .group = group++});
  if (osdn.retention == config::Retention::kOwnGate) {
    specs.push_back({.name = prefix + "osgm_a_proj.weight",
                     .shape = {num_value_heads, hidden_size},
                     .initializer = Initializer::kConstant,
                     .scale = 0.0,
                     .decay = false,
                     .group = group++});
    specs.push_back({.name = prefix + "osgm_a_proj.bias",
                     .shape = {num_value_heads},
                     .initializer = Initializer::kConstant,
                     .scale = osdn.retention_bias,
                     .decay = false,
                     .full_precision = true,
                     .group = group++});
  }
  return specs;
}

Preconditioner::Preconditioner(const config::Osdn& osdn, const std::string& prefix,
                               const WeightSource& weights)
    : osdn_(osdn), options_(scan_options(osdn)), initial_scale_(weights(prefix + "initial_scale")) {
  if (osdn.retention == config::Retention::kOwnGate) {
    gate_weight_ = weights(prefix + "osgm_a_proj.weight");
    gate_bias_ = weights(prefix + "osgm_a_proj.bias");
  }
}

at::Tensor Preconditioner::retention(const Input& input) const {
  const at::Tensor& beta = input.beta;
  switch (osdn_.retention) {
    case config::Retention::kNone:
      return {};
    case config::Retention::kConstant:
      return at::full(beta.sizes(), 1.0 / (1.0 + std::exp(-osdn_.retention_bias)), beta.options());
    case config::Retention::kOwnGate:
      // The sigmoid in fp32: a bf16 retention near 0.999 would round to 1 and never forget.
      return at::sigmoid(ops::linear(input.x, gate_weight_, gate_bias_).to(beta.scalar_type()));
    case config::Retention::kStateGate:
      OSDN_ASSERT(input.log_decay.defined(), "preconditioner: the state gate needs a backbone with a decay");
      return input.log_decay.to(beta.scalar_type()).exp();
  }
  return {};
}

ops::PrecondScanOutput Preconditioner::forward(const Input& input) const {
  return ops::precond_scan({.k = input.k,
                            .beta = input.beta,
                            .retention = retention(input),
                            .initial_scale = initial_scale_,
                            .carried = input.carried,
                            .sequences = input.sequences,
                            .options = options_,
                            .collect_statistics = input.collect_statistics});
}

}  // namespace osdn::model
