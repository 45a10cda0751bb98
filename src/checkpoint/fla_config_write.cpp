#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/detail/fla_keys.h"
#include "checkpoint/fla_config.h"

namespace osdn::checkpoint {
namespace fla_detail {
namespace {

Json optional_count(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(nullptr); }

const char* activation_name(config::QkActivation activation) {
  switch (activation) {
    case config::QkActivation::kSilu:
      return "silu";
    case config::QkActivation::kRelu:
      return "relu";
    case config::QkActivation::kElu:
      return "elu";
    case config::QkActivation::kIdentity:
      return "identity";
  }
  return "";
}

void refuse_what_has_no_place(const Family& family, const config::Model& model) {
  if (!model.attention.layers.empty() && model.attention.qk_norm)
    refuse_export("model.attention.qk_norm", "true", "its layers of attention have no norm of q and k");
  if (config::gate_low_rank(model) != config::value_dim(model))
    refuse_export("model.gate_low_rank", std::to_string(config::gate_low_rank(model)),
                  "its readers take the head size of a value");
  if (family.authors) refuse_osdn_without_place(family, model);
}

Json hybrid_layers(const config::Model& model) {
  const config::Attention& attention = model.attention;
  if (attention.layers.empty()) return nullptr;
  return {{"layers", attention.layers},
          {"num_heads", config::attention_heads(model)},
          {"num_kv_heads", config::attention_kv_heads(model)},
          {"qkv_bias", attention.qkv_bias},
          {"window_size", optional_count(attention.window_size)},
          {"rope_theta", attention.rope_theta}};
}

void write_delta_layers(const Family& family, const config::Model& model, Json* json) {
  json->update({{"attn", hybrid_layers(model)},
                {"attn_mode", "chunk"},
                {"conv_size", model.conv_size},
                {"use_short_conv", true},
                {"expand_v", model.value_expand.value_or(family.value_expand)}});
  if (family.head_dim != 0)
    json->update({{"head_dim", model.head_dim}, {"num_v_heads", optional_count(model.num_value_heads)}});
  switch (family.backbone) {
    case config::Backbone::kDeltaNet:
      json->update({{"expand_k", 1.0},
                    {"qk_activation", activation_name(model.qk_activation)},
                    {"qk_norm", model.qk_norm == config::QkNorm::kSum ? "sum" : "l2"},
                    {"use_beta", true},
                    {"use_gate", config::output_gate(model)},
                    {"use_output_norm", true}});
      break;
    case config::Backbone::kGatedDeltaNet:
      (*json)["use_gate"] = config::output_gate(model);
      break;
    case config::Backbone::kKda:
      json->update({{"safe_gate", model.safe_gate},
                    {"lower_bound", model.gate_lower_bound ? Json(*model.gate_lower_bound) : Json(nullptr)}});
      break;
    case config::Backbone::kTransformer:
      break;
  }
  if (family.authors) write_osdn(family, model, json);
  if (!family.authors || family.backbone != config::Backbone::kDeltaNet)
    (*json)["allow_neg_eigval"] = model.allow_negative_eigenvalues;
}

void write_transformer(const config::Model& model, Json* json) {
  const config::Attention& attention = model.attention;
  json->update({{"num_kv_heads", optional_count(attention.num_kv_heads)},
                {"qkv_bias", attention.qkv_bias},
                {"qk_norm", attention.qk_norm},
                {"rope_theta", attention.rope_theta},
                {"window_size", optional_count(attention.window_size)}});
}

}  // namespace
}  // namespace fla_detail

Json fla_config(const config::Model& model, const FlaConfigOptions& options) {
  using fla_detail::optional_count;
  const fla_detail::Family& family = fla_detail::family_of(model);
  fla_detail::refuse_what_has_no_place(family, model);
  const bool is_transformer = family.backbone == config::Backbone::kTransformer;
  Json json = {{"architectures", Json::array({family.architecture})},
               {"model_type", family.model_type},
               {"bos_token_id", optional_count(options.ids.bos)},
               {"eos_token_id", optional_count(options.ids.eos)},
               {"fuse_cross_entropy", true},
               {"fuse_norm", true},
               {"fuse_swiglu", true},
               {"hidden_act", "swish"},
               {"hidden_ratio", 4},
               {"hidden_size", model.hidden_size},
               {"initializer_range", model.initializer_range},
               {"intermediate_size", optional_count(model.intermediate_size)},
               {"max_position_embeddings", options.max_position_embeddings},
               {"norm_eps", model.norm_eps},
               {"num_heads", is_transformer ? config::attention_heads(model) : model.num_heads},
               {"num_hidden_layers", model.num_layers},
               {"pad_token_id", optional_count(options.ids.pad)},
               {"tie_word_embeddings", model.tie_embeddings},
               {"torch_dtype", options.dtype},
               {"use_cache", true},
               {"use_l2warp", false},
               {"vocab_size", model.vocab_size.value()}};
  if (is_transformer)
    fla_detail::write_transformer(model, &json);
  else
    fla_detail::write_delta_layers(family, model, &json);
  return json;
}

bool stays_float32(const std::string& name) {
  const std::string last =
      name.substr(name.find(".attn.") == std::string::npos ? 0 : name.find(".attn.") + 6);
  return last == "A_log" || last == "dt_bias" || last == "initial_scale" || last.rfind("osgm_", 0) == 0;
}

}  // namespace osdn::checkpoint
