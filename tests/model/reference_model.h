// The whole language model token by token in plain float64 ATen, written from docs/backbones.md and the pages
// of the ops, sharing no code with src/model or src/ops: what the tests of the backbones compare with.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "tensor/torch.h"

namespace osdn::test {

// T: tokens of one document; D: hidden size; H, HV: key and value heads; K, V: their sizes.

class ReferenceModel {
 public:
  using Weights = std::map<std::string, at::Tensor>;  // float64, by checkpoint name

  ReferenceModel(config::Model model, Weights weights)
      : model_(std::move(model)), weights_(std::move(weights)) {}

  /// Logits [T, V] of one document.
  at::Tensor logits(const at::Tensor& ids) const {
    at::Tensor r = weight("model.embeddings.weight").index_select(0, ids);  // [T, D]
    for (int64_t layer = 0; layer < model_.num_layers; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + ".";
      const at::Tensor x = rms(r, name + "attn_norm.weight", model_.norm_eps);
      r = r + (config::is_attention_layer(model_, layer) ? softmax_mixer(x, name + "attn.")
                                                         : delta_mixer(x, name + "attn."));
      const at::Tensor h = rms(r, name + "mlp_norm.weight", model_.norm_eps);
      const at::Tensor gate = linear(h, name + "mlp.gate_proj");
      r = r + linear(gate * at::sigmoid(gate) * linear(h, name + "mlp.up_proj"), name + "mlp.down_proj");
    }
    r = rms(r, "model.norm.weight", model_.norm_eps);
    return at::matmul(r, weight(model_.tie_embeddings ? "model.embeddings.weight" : "lm_head.weight").t());
  }

  const Weights& weights() const { return weights_; }

 private:
  const at::Tensor& weight(const std::string& name) const { return weights_.at(name); }
  bool has(const std::string& name) const { return weights_.count(name) != 0; }

  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const at::Tensor y = at::matmul(x, weight(name + ".weight").t());
    return has(name + ".bias") ? y + weight(name + ".bias") : y;
  }
  at::Tensor rms(const at::Tensor& x, const std::string& name, double eps) const {
    return x * at::rsqrt(x.square().mean(-1, true) + eps) * weight(name);
  }
  static at::Tensor unit(const at::Tensor& x) { return x * at::rsqrt(x.square().sum(-1, true) + 1e-6); }
  static at::Tensor silu(const at::Tensor& x) { return x * at::sigmoid(x); }

  at::Tensor conv(const at::Tensor& x, const std::string& name) const {
    const at::Tensor taps = weight(name + ".weight").squeeze(1);  // [C, W]
    const int64_t W = taps.size(1);
    const at::Tensor padded = at::cat({at::zeros({W - 1, x.size(1)}, x.options()), x});
    at::Tensor y = at::zeros_like(x);
    for (int64_t j = 0; j < W; ++j) y = y + padded.narrow(0, j, x.size(0)) * taps.select(1, j);
    return y;
  }

  at::Tensor activated(const at::Tensor& x) const {
    switch (model_.qk_activation) {
      case config::QkActivation::kSilu:
        return silu(x);
      case config::QkActivation::kRelu:
        return x.clamp_min(0);
      case config::QkActivation::kElu:
        return at::where(x > 0, x + 1, x.exp());
      case config::QkActivation::kIdentity:
        break;
    }
    return x;
  }

  /// Log decay [T, HV, K]; zero for delta_net.
  at::Tensor log_decay(const at::Tensor& x, const std::string& name) const {
    const int64_t HV = config::num_value_heads(model_);
    const int64_t K = model_.head_dim;
    if (model_.backbone == config::Backbone::kDeltaNet) return at::zeros({x.size(0), HV, K}, x.options());
    const at::Tensor rate = weight(name + "A_log").exp().view({HV, 1});
    const at::Tensor bias = weight(name + "dt_bias").view({HV, -1});
    const at::Tensor a = model_.backbone == config::Backbone::kKda
                             ? linear(linear(x, name + "f_proj.0"), name + "f_proj.1")
                             : linear(x, name + "a_proj");
    const at::Tensor y = a.view({x.size(0), HV, -1}) + bias;
    const at::Tensor g = model_.gate_lower_bound ? *model_.gate_lower_bound * at::sigmoid(rate * y)
                                                 : -rate * at::log1p(y.exp());
    return g.expand({x.size(0), HV, K});
  }

  at::Tensor delta_mixer(const at::Tensor& x, const std::string& name) const {
    const int64_t T = x.size(0);
    const int64_t H = model_.num_heads;
    const int64_t HV = config::num_value_heads(model_);
    const auto heads = [&](const at::Tensor& y, int64_t count) { return y.view({T, count, -1}); };
    at::Tensor q = heads(activated(conv(linear(x, name + "q_proj"), name + "q_conv1d")), H);
    at::Tensor k = heads(activated(conv(linear(x, name + "k_proj"), name + "k_conv1d")), H);
    const at::Tensor v = heads(silu(conv(linear(x, name + "v_proj"), name + "v_conv1d")), HV);
    const bool by_sum = model_.qk_norm == config::QkNorm::kSum;
    q = by_sum ? q / q.sum(-1, true) : unit(q);
    k = by_sum ? k / k.sum(-1, true) : unit(k);
    q = q.repeat_interleave(HV / H, 1);  // [T, HV, K]
    k = k.repeat_interleave(HV / H, 1);
    const at::Tensor beta = at::sigmoid(linear(x, name + "b_proj")) * config::max_beta(model_);  // [T, HV]
    const at::Tensor decay = log_decay(x, name).exp();                                           // [T, HV, K]
    const at::Tensor d = preconditioner(x, k, beta, decay, name);                                // [T, HV, K]

    const double scale = 1.0 / std::sqrt(static_cast<double>(model_.head_dim));
    at::Tensor S = at::zeros({HV, k.size(2), v.size(2)}, x.options());
    std::vector<at::Tensor> reads;
    for (int64_t t = 0; t < T; ++t) {
      S = S * decay[t].unsqueeze(2);
      const at::Tensor error = v[t] - at::einsum("hkv,hk->hv", {S, k[t]});
      S = S + at::einsum("hk,hv->hkv", {d[t] * k[t], error * beta[t].unsqueeze(1)});
      reads.push_back(scale * at::einsum("hkv,hk->hv", {S, q[t]}));
    }
    at::Tensor o = rms(at::stack(reads), name + "o_norm.weight", model_.norm_eps);  // [T, HV, V]
    if (model_.backbone == config::Backbone::kKda)
      o = o * at::sigmoid(heads(linear(linear(x, name + "g_proj.0"), name + "g_proj.1"), HV));
    else if (config::output_gate(model_))
      o = o * silu(heads(linear(x, name + "g_proj"), HV));
    return linear(o.reshape({T, -1}), name + "o_proj");
  }

  /// d of every token [T, HV, K]; ones without OSDN. The beta-aware rule.
  at::Tensor preconditioner(const at::Tensor& x, const at::Tensor& k, const at::Tensor& beta,
                            const at::Tensor& decay, const std::string& name) const {
    if (!model_.osdn) return at::ones_like(k);
    const config::Osdn& osdn = *model_.osdn;
    at::Tensor r = at::ones_like(k);
    if (osdn.retention == config::Retention::kStateGate) r = decay;
    if (osdn.retention == config::Retention::kOwnGate)
      r = at::sigmoid(linear(x, name + "osgm_a_proj")).unsqueeze(2).expand_as(k);
    at::Tensor d = weight(name + "initial_scale");  // [HV, K]
    std::vector<at::Tensor> all;
    for (int64_t t = 0; t < k.size(0); ++t) {
      all.push_back(d);
      const at::Tensor w = k[t].square();
      const at::Tensor b = beta[t].unsqueeze(1);
      const at::Tensor strength = b * (d * w).sum(-1, true);
      d = (r[t] * d + osdn.step_size * b * (1 - strength) * w).clamp(osdn.box[0], osdn.box[1]);
    }
    return at::stack(all);
  }

  at::Tensor softmax_mixer(const at::Tensor& x, const std::string& name) const {
    const int64_t T = x.size(0);
    const int64_t H = config::attention_heads(model_);
    const int64_t HK = config::attention_kv_heads(model_);
    const config::Attention& attention = model_.attention;
    at::Tensor q = linear(x, name + "q_proj").view({T, H, -1});
    at::Tensor k = linear(x, name + "k_proj").view({T, HK, -1});
    const at::Tensor v = linear(x, name + "v_proj").view({T, HK, -1}).repeat_interleave(H / HK, 1);
    if (attention.qk_norm) {
      q = rms(q, name + "q_norm.weight", 1e-5);
      k = rms(k, name + "k_norm.weight", 1e-5);
    }
    q = rotated(q);
    k = rotated(k).repeat_interleave(H / HK, 1);
    const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(2)));
    std::vector<at::Tensor> rows;
    for (int64_t t = 0; t < T; ++t) {
      const int64_t first = attention.window_size ? std::max<int64_t>(0, t + 1 - *attention.window_size) : 0;
      const at::Tensor p = at::softmax(at::einsum("lhd,hd->lh", {k.slice(0, first, t + 1), q[t]}) * scale, 0);
      rows.push_back(at::einsum("lhd,lh->hd", {v.slice(0, first, t + 1), p}));
    }
    return linear(at::stack(rows).reshape({T, -1}), name + "o_proj");
  }

  at::Tensor rotated(const at::Tensor& x) const {
    const int64_t half = x.size(2) / 2;
    std::vector<at::Tensor> rows;
    for (int64_t t = 0; t < x.size(0); ++t) {
      const at::Tensor angle = static_cast<double>(t) *
                               at::pow(model_.attention.rope_theta, -at::arange(half, x.options()) / half);
      const at::Tensor a = x[t].narrow(1, 0, half);
      const at::Tensor b = x[t].narrow(1, half, half);
      rows.push_back(at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 1));
    }
    return at::stack(rows);
  }

  config::Model model_;
  Weights weights_;
};

}  // namespace osdn::test
