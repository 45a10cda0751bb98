#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/fla_config.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace fla_config_write_detail {

[[noreturn]] void refuse(const char* key, const std::string& got, const char* why) {
  throw UserError("export: {}: {} cannot be expressed in this format: {}", key, got, why);
}

/// The fewest decimal digits of a rate from which the authors' code computes the same fp32 buffer.
double shortest_rate(float bias) {
  const double exact = 1.0 / (1.0 + std::exp(-static_cast<double>(bias)));
  for (int digits = 1; digits < 17; ++digits) {
    char text[40];
    std::snprintf(text, sizeof text, "%.*g", digits, exact);
    const double rate = std::strtod(text, nullptr);
    if (rate > 0 && rate < 1 && static_cast<float>(std::log(rate / (1.0 - rate))) == bias) return rate;
  }
  return exact;
}

void refuse_what_has_no_place(const config::Model& model) {
  if (model.backbone != config::Backbone::kDeltaNet)
    refuse("model.backbone", "this backbone", "it holds delta_net models only");
  if (!model.osdn) return;
  const config::Osdn& osdn = *model.osdn;
  if (osdn.hypergradient == config::Hypergradient::kBetaAware)
    refuse("model.osdn.hypergradient", "beta_aware",
           "the code that reads osla_delta_net directories knows beta_free only, and would compute other "
           "logits from the same weights");
  if (osdn.anchored) refuse("model.osdn.anchored", "true", "its readers forget towards 0, not towards 1");
  if (osdn.retention == config::Retention::kStateGate)
    refuse("model.osdn.retention", "state_gate", "a delta_net has no gate on its state");
  if (model.allow_negative_eigenvalues)
    refuse("model.allow_negative_eigenvalues", "true", "readers of osla_delta_net do not know it");
}

Json optional_id(const std::optional<int64_t>& id) { return id ? Json(*id) : Json(nullptr); }

void add_osdn(const config::Osdn& osdn, Json* json) {
  const bool constant = osdn.retention == config::Retention::kConstant;
  const bool gated = osdn.retention == config::Retention::kOwnGate;
  json->update(
      {{"use_osgm", true},
       {"osgm_eta", osdn.step_size},
       {"osgm_use_denominator", osdn.divide_by_key_norm},
       {"osgm_d_min", osdn.box[0]},
       {"osgm_d_max", osdn.box[1]},
       {"osgm_decay", false},
       {"osgm_decay_mode", constant ? "constant" : (gated ? "data_dependent" : "none")},
       {"osgm_decay_gamma", constant ? shortest_rate(static_cast<float>(osdn.retention_bias)) : 0.999},
       {"osgm_ema_alpha", 0.999},
       {"osgm_ema_normalize", false}});
}

}  // namespace fla_config_write_detail

Json fla_config(const config::Model& model, const FlaConfigOptions& options) {
  fla_config_write_detail::refuse_what_has_no_place(model);
  const char* architecture = model.osdn ? "OSDNForCausalLM" : "DeltaNetForCausalLM";
  Json json = {
      {"architectures", Json::array({architecture})},
      {"model_type", model.osdn ? "osla_delta_net" : "delta_net"},
      {"attn", nullptr},
      {"attn_mode", "chunk"},
      {"bos_token_id", fla_config_write_detail::optional_id(options.ids.bos)},
      {"conv_size", model.conv_size},
      {"eos_token_id", fla_config_write_detail::optional_id(options.ids.eos)},
      {"expand_k", 1.0},
      {"expand_v", 1.0},
      {"fuse_cross_entropy", true},
      {"fuse_norm", true},
      {"fuse_swiglu", true},
      {"hidden_act", "swish"},
      {"hidden_ratio", 4},
      {"hidden_size", model.hidden_size},
      {"initializer_range", model.initializer_range},
      {"intermediate_size", model.intermediate_size ? Json(*model.intermediate_size) : Json(nullptr)},
      {"max_position_embeddings", options.max_position_embeddings},
      {"norm_eps", model.norm_eps},
      {"num_heads", model.num_heads},
      {"num_hidden_layers", model.num_layers},
      {"pad_token_id", fla_config_write_detail::optional_id(options.ids.pad)},
      {"qk_activation", "silu"},
      {"qk_norm", "l2"},
      {"tie_word_embeddings", model.tie_embeddings},
      {"torch_dtype", options.dtype},
      {"use_beta", true},
      {"use_cache", true},
      {"use_gate", model.use_gate},
      {"use_l2warp", false},
      {"use_output_norm", true},
      {"use_short_conv", true},
      {"vocab_size", model.vocab_size.value()}};
  if (model.osdn)
    fla_config_write_detail::add_osdn(*model.osdn, &json);
  else
    json["allow_neg_eigval"] = model.allow_negative_eigenvalues;
  return json;
}

void add_retention_buffers(const config::Model& model, TensorList* tensors) {
  if (!model.osdn || model.osdn->retention != config::Retention::kConstant) return;
  for (int64_t layer = 0; layer < model.num_layers; ++layer)
    tensors->emplace_back(fmt::format("model.layers.{}.attn.osgm_gamma_log", layer),
                          at::full({model.num_heads}, static_cast<float>(model.osdn->retention_bias),
                                   at::TensorOptions(at::kFloat)));
}

std::vector<std::string> not_carried(const config::Model& model) {
  std::vector<std::string> notes;
  if (!model.osdn) return notes;
  const config::Osdn& osdn = *model.osdn;
  if (osdn.clamp_initial_scale)
    notes.emplace_back(
        "model.osdn.clamp_initial_scale: initial_scale was written clamped to the box, as the model uses it");
  if (!osdn.learn_initial_scale)
    notes.emplace_back("model.osdn.learn_initial_scale: false; a reader that trains on will learn it");
  if (osdn.detach)
    notes.emplace_back("model.osdn.detach: true; a reader that trains on will differentiate through d");
  return notes;
}

bool stays_float32(const std::string& name) {
  const std::string last =
      name.substr(name.find(".attn.") == std::string::npos ? 0 : name.find(".attn.") + 6);
  return last == "A_log" || last == "dt_bias" || last == "initial_scale" || last.rfind("osgm_", 0) == 0;
}

}  // namespace osdn::checkpoint
