#include "model/lm.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/rms_norm.h"
#include "tensor/torch.h"

namespace osdn::model {

std::vector<ParameterSpec> parameter_specs(const config::Model& config, int64_t vocab_size) {
  int64_t group = 0;
  std::vector<ParameterSpec> specs;
  specs.push_back({.name = "model.embeddings.weight",
                   .shape = {vocab_size, config.hidden_size},
                   .scale = config.initializer_range,
                   .group = group++});
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    for (ParameterSpec& spec : Block::specs(config, layer, group)) specs.push_back(std::move(spec));
  specs.push_back({.name = "model.norm.weight",
                   .shape = {config.hidden_size},
                   .initializer = Initializer::kConstant,
                   .scale = 1.0,
                   .decay = false,
                   .full_precision = true,
                   .group = group++});
  if (!config.tie_embeddings) {
    specs.push_back({.name = "lm_head.weight",
                     .shape = {vocab_size, config.hidden_size},
                     .scale = config.initializer_range,
                     .group = group++});
  }
  return specs;
}

int64_t count_parameters(const std::vector<ParameterSpec>& specs) {
  // A matrix has fewer than 2^50 elements (the largest vocabulary times the largest width), their sum may
  // overflow.
  int64_t count = 0;
  for (const ParameterSpec& spec : specs) {
    if (__builtin_add_overflow(count, spec.num_elements(), &count))
      throw UserError(
          "model: expected at most 2^63 parameters, got more (look at hidden_size, num_layers and "
          "vocab_size)");
  }
  return count;
}

LanguageModel::LanguageModel(const config::Model& config, int64_t vocab_size, const WeightSource& weights)
    : vocab_size_(vocab_size), norm_eps_(config.norm_eps), embeddings_(weights("model.embeddings.weight")) {
  blocks_.reserve(static_cast<size_t>(config.num_layers));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) blocks_.emplace_back(config, layer, weights);
  norm_ = weights("model.norm.weight");
  head_ = config.tie_embeddings ? embeddings_ : weights("lm_head.weight");
}

namespace lm_detail {

void before_forward(const ForwardCall& call, int64_t layer) {
  if (call.hooks && call.hooks->before_forward) call.hooks->before_forward(layer);
}

/// The stream is what `layer` reads: autograd completes its gradient after every gradient of `layer`, whose
/// ops all lie between it and the loss. Both parts' gradients are one and the same.
void after_backward(const ForwardCall& call, int64_t layer, const Stream& stream) {
  const at::Tensor& r = stream.branch.defined() ? stream.branch : stream.residual;
  if (!call.hooks || !call.hooks->after_backward || !r.requires_grad()) return;
  r.register_hook(
      [hooks = call.hooks, layer](const at::Tensor& /*gradient*/) { hooks->after_backward(layer); });
}

}  // namespace lm_detail

int64_t layer_of(const std::string& parameter_name, int64_t num_layers) {
  constexpr std::string_view kBlocks = "model.layers.";
  if (parameter_name.rfind("model.embeddings.", 0) == 0) return 0;
  if (parameter_name.rfind(kBlocks, 0) != 0) return num_layers + 1;
  return 1 + std::stoll(parameter_name.substr(kBlocks.size()));
}

at::Tensor LanguageModel::hidden(const at::Tensor& ids, ForwardCall& call) const {
  if (call.state && call.state->empty()) call.state->resize(blocks_.size());
  call.statistics.clear();
  lm_detail::before_forward(call, 0);
  Stream stream{.branch = {}, .residual = ops::embedding(ids, embeddings_)};
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    const auto number = static_cast<int64_t>(layer) + 1;
    lm_detail::before_forward(call, number);
    lm_detail::after_backward(call, number, stream);
    MixerCall mixer{.sequences = call.sequences,
                    .state = call.state ? &(*call.state)[layer] : nullptr,
                    .single_tokens = call.single_tokens,
                    .overwrite_state = call.overwrite_state,
                    .collect_statistics = call.collect_statistics};
    stream = blocks_[layer].forward(stream, mixer, call.recompute);
    if (mixer.statistics.defined()) call.statistics.push_back(mixer.statistics);
  }
  lm_detail::before_forward(call, num_layers() + 1);
  lm_detail::after_backward(call, num_layers() + 1, stream);
  return ops::carry_rms_norm(stream.branch, stream.residual, norm_, norm_eps_).normalized;
}

at::Tensor LanguageModel::loss(const at::Tensor& ids, const at::Tensor& targets, ForwardCall& call) const {
  return ops::linear_cross_entropy(hidden(ids, call), head_, targets);
}

at::Tensor LanguageModel::loss_rows(const at::Tensor& ids, const at::Tensor& targets,
                                    ForwardCall& call) const {
  const at::NoGradGuard no_grad;
  return ops::linear_cross_entropy_rows(hidden(ids, call), head_.value, targets);
}

at::Tensor LanguageModel::logits(const at::Tensor& hidden_states) const {
  return ops::linear(hidden_states, head_)
      .to(hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

double training_flops_per_token(const config::Model& config, int64_t vocab_size, int64_t sequence_length) {
  const auto specs = parameter_specs(config, vocab_size);
  double parameters = static_cast<double>(count_parameters(specs));
  // A tied embedding is multiplied once, as the head; an untied one only looked up.
  if (!config.tie_embeddings) parameters -= static_cast<double>(vocab_size * config.hidden_size);
  const double K = static_cast<double>(config.head_dim);
  const double V = static_cast<double>(config::value_dim(config));
  const double C = 64;
  const double rule =
      static_cast<double>(config::num_value_heads(config)) * (6 * K * V + 6 * C * K + 4 * C * V);
  // Token t of a sequence sees min(t, window) keys, at 4 d operations a head for scores and sum.
  const double T = static_cast<double>(sequence_length);
  const double W = std::min(T, static_cast<double>(config.attention.window_size.value_or(sequence_length)));
  const double seen = W - W * (W - 1) / (2 * T);
  const double attention = 4 * static_cast<double>(config.hidden_size) * seen;
  double forward = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    forward += config::is_attention_layer(config, layer) ? attention : rule;
  return 6 * parameters + 3 * forward;
}

}  // namespace osdn::model
