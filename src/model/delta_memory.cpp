#include "model/delta_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ops/delta_rule.h"
#include "ops/residual_stats.h"
#include "tensor/torch.h"

namespace osdn::model {

std::string mixer_prefix(int64_t layer) { return fmt::format("model.layers.{}.attn.", layer); }

ParameterSpec matrix_spec(const config::Model& config, std::string name, std::vector<int64_t> shape,
                          int64_t group) {
  return {
      .name = std::move(name), .shape = std::move(shape), .scale = config.initializer_range, .group = group};
}

ParameterSpec vector_spec(std::string name, int64_t size, Initializer initializer, double low, double high,
                          int64_t& group) {
  return {.name = std::move(name),
          .shape = {size},
          .initializer = initializer,
          .scale = high,
          .low = low,
          .decay = false,
          .full_precision = true,
          .group = group++};
}

ParameterSpec norm_spec(std::string name, int64_t width, int64_t& group) {
  return vector_spec(std::move(name), width, Initializer::kConstant, 0.0, 1.0, group);
}

std::vector<ParameterSpec> DeltaMemory::specs(const config::Model& config, const std::string& prefix,
                                              int64_t& group) {
  if (!config.osdn) return {};
  return Preconditioner::specs(*config.osdn, prefix, config.hidden_size, config::num_value_heads(config),
                               config.head_dim, group);
}

namespace delta_memory_detail {

// The op's chunk; generate.cpp cuts long prompts at multiples of it.
constexpr int64_t kPiece = 64;

/// Sequence by sequence and piece by piece, so that each has the bits that it has alone and in any slices,
/// where the op multiplies all at once.
ops::DeltaRuleOutput each_alone(const ops::DeltaRuleArgs& args) {
  const std::vector<int64_t>& offsets = args.sequences->host_offsets();
  std::vector<at::Tensor> reads;
  std::vector<at::Tensor> states;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    at::Tensor state = args.initial_state;  // [1, HV, K, V] or undefined
    if (state.defined()) state = state.narrow(0, static_cast<int64_t>(s), 1);
    int64_t begin = offsets[s];
    do {  // once for a sequence without tokens, which has a state as well
      const int64_t count = std::min(kPiece, offsets[s + 1] - begin);
      ops::DeltaRuleArgs one = args;
      for (at::Tensor* tensor : {&one.q, &one.k, &one.v, &one.beta, &one.write_key, &one.log_decay})
        if (tensor->defined()) *tensor = tensor->narrow(0, begin, count);
      one.initial_state = state;
      one.sequences = ops::Sequences::make({0, count}, args.q.device());
      const ops::DeltaRuleOutput out = ops::delta_rule(one);
      reads.push_back(out.o);
      state = out.final_state;
      begin += count;
    } while (begin < offsets[s + 1]);
    states.push_back(state);
  }
  return {.o = at::cat(reads), .final_state = at::cat(states)};
}

}  // namespace delta_memory_detail

DeltaMemory::DeltaMemory(const config::Model& config, const std::string& prefix, const WeightSource& weights)
    : l2_normalize_(config.qk_norm == config::QkNorm::kL2) {
  if (config.osdn) preconditioner_.emplace(*config.osdn, prefix, weights);
}

at::Tensor DeltaMemory::forward(const Input& input, MixerCall& call) const {
  ops::PrecondScanOutput scan;
  if (preconditioner_) {
    scan = preconditioner_->forward({.x = input.x,
                                     .k = input.k,
                                     .beta = input.beta,
                                     .log_decay = input.log_decay,
                                     .carried = call.state ? call.state->scale : at::Tensor(),
                                     .sequences = call.sequences,
                                     .collect_statistics = call.collect_statistics});
    call.statistics = scan.statistics;
  } else if (call.collect_statistics) {
    call.statistics = ops::plain_residual_stats(input.k, input.beta, l2_normalize_);
  }
  const ops::DeltaRuleArgs args{.q = input.q,
                                .k = preconditioner_ ? scan.read_key : input.k,
                                .v = input.v,
                                .beta = input.beta,
                                .write_key = scan.write_key,
                                .log_decay = input.log_decay,
                                .initial_state = call.state ? call.state->recurrent : at::Tensor(),
                                .sequences = call.sequences,
                                .l2_normalize = l2_normalize_,
                                // A token read with a prompt has the same bits beside longer ones.
                                .by_chunks = call.state && !call.single_tokens,
                                .overwrite_initial_state = call.overwrite_state};
  const bool mixed = call.state && !ops::keeps_sequences_apart(args);
  const ops::DeltaRuleOutput rule = mixed ? delta_memory_detail::each_alone(args) : ops::delta_rule(args);
  if (call.state) {
    call.state->scale = scan.final_d.defined() ? scan.final_d.detach() : at::Tensor();
    call.state->recurrent = rule.final_state.detach();
  }
  return rule.o;
}

}  // namespace osdn::model
