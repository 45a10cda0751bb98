#include "model/mixers/attention.h"

#include <algorithm>
#include <string>

#include "model/delta_memory.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "tensor/torch.h"

// N: packed tokens; M: these and the cached ones; S: sequences; D: hidden size; H, HK: heads of queries and
// of keys and values; d: head size.

namespace osdn::model {
namespace attention_detail {

// The peer's layer, apart from the model's norm_eps.
constexpr double kQkNormEps = 1e-5;

class Attention final : public Mixer {
 public:
  Attention(const config::Model& config, int64_t layer, const WeightSource& weights)
      : num_heads_(config::attention_heads(config)),
        num_kv_heads_(config::attention_kv_heads(config)),
        head_dim_(config.hidden_size / num_heads_),
        window_size_(config.attention.window_size.value_or(0)),
        rope_theta_(config.attention.rope_theta) {
    const std::string prefix = mixer_prefix(layer);
    const auto weight = [&](const char* name) { return weights(prefix + name); };
    in_proj_ = join({weight("q_proj.weight"), weight("k_proj.weight"), weight("v_proj.weight")});
    if (config.attention.qkv_bias)
      in_bias_ = join({weight("q_proj.bias"), weight("k_proj.bias"), weight("v_proj.bias")});
    if (config.attention.qk_norm) {
      q_norm_ = weight("q_norm.weight");
      k_norm_ = weight("k_norm.weight");
    }
    out_proj_ = weight("o_proj.weight");
  }

  at::Tensor forward(const at::Tensor& x, MixerCall& call) const override {
    const at::Tensor projected = ops::linear(x, in_proj_, in_bias_);  // [N, (H + 2HK) d]
    const auto heads = [&](int64_t begin, int64_t count) {
      return projected.narrow(1, begin * head_dim_, count * head_dim_).unflatten(1, {count, head_dim_});
    };
    at::Tensor q = heads(0, num_heads_);              // [N, H, d]
    at::Tensor k = heads(num_heads_, num_kv_heads_);  // [N, HK, d]
    const at::Tensor v = heads(num_heads_ + num_kv_heads_, num_kv_heads_);
    if (q_norm_.defined()) {
      q = ops::rms_norm(q, q_norm_, kQkNormEps);
      k = ops::rms_norm(k, k_norm_, kQkNormEps);
    }
    const at::Tensor positions = ops::positions_of(
        *call.sequences, call.state ? call.state->num_read : std::vector<int64_t>{}, x.device());
    ops::AttentionArgs args{.q = ops::rotary(q, positions, rope_theta_),
                            .k = ops::rotary(k, positions, rope_theta_),
                            .v = v.contiguous(),
                            .queries = call.sequences,
                            .keys = call.sequences,
                            .window_size = window_size_};
    if (call.state) extend_cache(call, &args);
    return ops::linear(ops::attention(args).flatten(1), out_proj_);
  }

 private:
  /// Puts the cached keys and values of every sequence before its new ones, and keeps what a later token can
  /// still see.
  void extend_cache(const MixerCall& call, ops::AttentionArgs* args) const {
    MixerState& state = *call.state;
    const std::vector<int64_t>& offsets = call.sequences->host_offsets();
    const size_t S = offsets.size() - 1;
    state.num_read.resize(S, 0);
    state.keys.resize(S);
    state.values.resize(S);
    std::vector<int64_t> all_offsets = {0};
    for (size_t s = 0; s < S; ++s) {
      const int64_t count = offsets[s + 1] - offsets[s];
      const auto joined = [&](const at::Tensor& cached, const at::Tensor& fresh) {
        const at::Tensor rows = fresh.detach().narrow(0, offsets[s], count);
        return cached.defined() ? at::cat({cached, rows}) : rows;
      };
      state.keys[s] = joined(state.keys[s], args->k);
      state.values[s] = joined(state.values[s], args->v);
      state.num_read[s] += count;
      all_offsets.push_back(all_offsets.back() + state.keys[s].size(0));
    }
    args->k = at::cat(state.keys);
    args->v = at::cat(state.values);
    args->keys = ops::Sequences::make(std::move(all_offsets), args->k.device());
    for (size_t s = 0; s < S; ++s) {
      const int64_t length = state.keys[s].size(0);
      const int64_t kept = window_size_ > 0 ? std::min(length, window_size_ - 1) : length;
      // Copied: a view would hold on to everything that it was cut from.
      state.keys[s] = state.keys[s].narrow(0, length - kept, kept).clone();
      state.values[s] = state.values[s].narrow(0, length - kept, kept).clone();
    }
  }

  int64_t num_heads_;
  int64_t num_kv_heads_;
  int64_t head_dim_;
  int64_t window_size_;  // 0: no window
  double rope_theta_;
  Weight in_proj_;   // [(H + 2HK) d, D]: q, k, v
  Weight in_bias_;   // [(H + 2HK) d], with qkv_bias
  Weight q_norm_;    // [d], with qk_norm
  Weight k_norm_;    // [d], with qk_norm
  Weight out_proj_;  // [D, H d]
};

}  // namespace attention_detail

std::vector<ParameterSpec> attention_specs(const config::Model& config, int64_t layer, int64_t& group) {
  const std::string prefix = mixer_prefix(layer);
  const int64_t hidden = config.hidden_size;
  const int64_t head_dim = hidden / config::attention_heads(config);
  const int64_t kv_width = config::attention_kv_heads(config) * head_dim;
  std::vector<ParameterSpec> specs;
  const auto matrix = [&](const char* name, int64_t rows) {
    specs.push_back(
        {.name = prefix + name, .shape = {rows, hidden}, .scale = config.initializer_range, .group = group});
  };
  const auto bias = [&](const char* name, int64_t size) {
    specs.push_back({.name = prefix + name,
                     .shape = {size},
                     .initializer = Initializer::kConstant,
                     .scale = 0,
                     .decay = false,
                     .full_precision = true,
                     .group = group});
  };
  matrix("q_proj.weight", hidden);
  matrix("k_proj.weight", kv_width);
  matrix("v_proj.weight", kv_width);
  ++group;
  if (config.attention.qkv_bias) {
    bias("q_proj.bias", hidden);
    bias("k_proj.bias", kv_width);
    bias("v_proj.bias", kv_width);
    ++group;
  }
  if (config.attention.qk_norm) {
    specs.push_back(norm_spec(prefix + "q_norm.weight", head_dim, group));
    specs.push_back(norm_spec(prefix + "k_norm.weight", head_dim, group));
  }
  matrix("o_proj.weight", hidden);
  ++group;
  return specs;
}

std::unique_ptr<Mixer> make_attention(const config::Model& config, int64_t layer,
                                      const WeightSource& weights) {
  return std::make_unique<attention_detail::Attention>(config, layer, weights);
}

}  // namespace osdn::model
