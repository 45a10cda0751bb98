#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/detail/fla_keys.h"
#include "checkpoint/fla_config.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace fla_detail {
namespace {

// What the authors' kernels take for a null d_max.
constexpr double kAuthorsNoUpperLimit = 1e9;
constexpr const char* kRetentionBuffer = ".attn.osgm_gamma_log";

std::vector<FixedKey> fixed_keys(const Family& family) {
  std::vector<FixedKey> keys = {
      {"use_osgm", {true}, "without it the authors' code runs another rule"},
      {"osgm_decay_mode",
       {"none", "constant", "data_dependent"},
       "a learned rate per head and moving averages have no counterpart"},
  };
  switch (family.backbone) {
    case config::Backbone::kDeltaNet:
      keys.push_back({"osgm_beta_aware", {false}, "the authors' DeltaNet kernels are beta-free"});
      keys.push_back({"allow_neg_eigval", {false}, "the authors' model code does not read it"});
      break;
    case config::Backbone::kGatedDeltaNet:
      keys.push_back({"gate_aware_hypergradient", {false}, "the gate does not weigh the keys of d here"});
      keys.push_back({"osgm_post_gate_residual", {false}, "the gate does not weigh the keys of d here"});
      keys.push_back({"osgm_post_gate_clamp_min", {nullptr}, "it belongs to osgm_post_gate_residual"});
      keys.push_back({"osgm_post_gate_use_remaining", {false}, "it belongs to osgm_post_gate_residual"});
      keys.push_back({"osgm_d_decay_source", {"osgm", "gdn"}, "d keeps by a gate of its own or the state's"});
      break;
    case config::Backbone::kKda:
      keys.push_back({"num_v_heads", {nullptr}, "the authors repeat the decay of key heads"});
      break;
    case config::Backbone::kTransformer:
      break;
  }
  return keys;
}

/// Constant retention is a buffer in the files of these, a key alone for os_kda.
bool has_retention_buffers(const config::Model& model) {
  return model.osdn && model.osdn->retention == config::Retention::kConstant &&
         model.backbone != config::Backbone::kKda;
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

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

config::Osdn read_osdn(const Family& family, Reader& reader) {
  for (const FixedKey& fixed : fixed_keys(family)) reader.demand(fixed);
  const bool is_gated = family.backbone == config::Backbone::kGatedDeltaNet;
  const bool is_kda = family.backbone == config::Backbone::kKda;
  // The configuration classes of the two later models switch it on by default.
  if (!reader.find("use_osgm") && !is_gated && !is_kda)
    throw UserError(
        "{}: use_osgm: expected true, got nothing (without it the authors' code runs another rule)",
        reader.path());
  config::Osdn osdn;
  osdn.hypergradient = config::Hypergradient::kBetaFree;
  if (is_gated && reader.flag("osgm_post_gate_regret", false))
    osdn.hypergradient = config::Hypergradient::kBetaAware;
  if (is_kda && reader.flag("osgm_beta_aware", true)) osdn.hypergradient = config::Hypergradient::kBetaAware;
  if (is_gated) osdn.learn_initial_scale = !reader.flag("osgm_freeze", false);
  // d0 is used as it was learned, also outside the box.
  osdn.clamp_initial_scale = false;
  osdn.step_size = reader.number("osgm_eta", 1.0);
  osdn.divide_by_key_norm = reader.flag("osgm_use_denominator", false);
  osdn.box = {reader.number("osgm_d_min", 0.0), reader.number("osgm_d_max", kAuthorsNoUpperLimit)};
  const std::string mode = reader.text("osgm_decay_mode", is_kda ? "constant" : "none");
  if (!is_gated && !is_kda) {
    if (mode == "none" && reader.flag("osgm_decay", false))
      reader.refuse("osgm_decay", "false (a learned rate per head has no counterpart)", StrictJson(true));
    reader.pass("osgm_decay");
  }
  const double rate = reader.number("osgm_decay_gamma", 0.999);
  const std::string source = is_gated ? reader.text("osgm_d_decay_source", "osgm") : "osgm";
  if (mode == "constant") {
    if (!(rate > 0 && rate < 1))
      reader.refuse("osgm_decay_gamma", "a number between 0 and 1", StrictJson(rate));
    osdn.retention = config::Retention::kConstant;
    osdn.retention_bias = static_cast<float>(std::log(rate / (1.0 - rate)));  // fp32, as their buffer
  } else if (mode == "data_dependent") {
    osdn.retention = source == "gdn" ? config::Retention::kStateGate : config::Retention::kOwnGate;
  }
  osdn.allow_unstable = true;  // settled by the caller, who knows the largest beta
  return osdn;
}

void refuse_export(const char* key, const std::string& got, const std::string& why) {
  throw UserError("export: {}: {} cannot be expressed in this format: {}", key, got, why);
}

void refuse_osdn_without_place(const Family& family, const config::Model& model) {
  const config::Osdn& osdn = *model.osdn;
  const bool is_delta_net = family.backbone == config::Backbone::kDeltaNet;
  if (is_delta_net && osdn.hypergradient == config::Hypergradient::kBetaAware)
    refuse_export("model.osdn.hypergradient", "beta_aware",
                  "the code that reads osla_delta_net directories knows beta_free only, and would compute "
                  "other logits from the same weights");
  if (osdn.anchored)
    refuse_export("model.osdn.anchored", "true", "its readers forget towards 0, not towards 1");
  if (osdn.retention == config::Retention::kStateGate && family.backbone != config::Backbone::kGatedDeltaNet)
    refuse_export("model.osdn.retention", "state_gate",
                  fmt::format("{} has no key for it", family.model_type));
  if (is_delta_net && model.allow_negative_eigenvalues)
    refuse_export("model.allow_negative_eigenvalues", "true", "readers of osla_delta_net do not know it");
  if (family.backbone == config::Backbone::kKda && config::num_value_heads(model) != model.num_heads)
    refuse_export("model.num_value_heads", std::to_string(config::num_value_heads(model)),
                  "readers of os_kda give the value heads of a group one decay");
}

void write_osdn(const Family& family, const config::Model& model, Json* json) {
  const config::Osdn& osdn = *model.osdn;
  const bool constant = osdn.retention == config::Retention::kConstant;
  const bool gated =
      osdn.retention == config::Retention::kOwnGate || osdn.retention == config::Retention::kStateGate;
  const bool aware = osdn.hypergradient == config::Hypergradient::kBetaAware;
  json->update(
      {{"use_osgm", true},
       {"osgm_eta", osdn.step_size},
       {"osgm_use_denominator", osdn.divide_by_key_norm},
       {"osgm_d_min", osdn.box[0]},
       {"osgm_d_max", osdn.box[1]},
       {"osgm_decay_mode", constant ? "constant" : (gated ? "data_dependent" : "none")},
       {"osgm_decay_gamma", constant ? shortest_rate(static_cast<float>(osdn.retention_bias)) : 0.999}});
  switch (family.backbone) {
    case config::Backbone::kDeltaNet:
      json->update({{"osgm_decay", false}, {"osgm_ema_alpha", 0.999}, {"osgm_ema_normalize", false}});
      break;
    case config::Backbone::kGatedDeltaNet:
      json->update({{"osgm_post_gate_regret", aware},
                    {"osgm_freeze", !osdn.learn_initial_scale},
                    {"osgm_d_decay_source", osdn.retention == config::Retention::kStateGate ? "gdn" : "osgm"},
                    {"gate_aware_hypergradient", false},
                    {"osgm_post_gate_residual", false},
                    {"osgm_post_gate_clamp_min", nullptr},
                    {"osgm_post_gate_use_remaining", false},
                    {"osgm_post_gate_regret_chunk_size", 64}});
      break;
    case config::Backbone::kKda:
      (*json)["osgm_beta_aware"] = aware;
      break;
    case config::Backbone::kTransformer:
      break;
  }
}

}  // namespace fla_detail

void take_retention_buffers(const std::string& directory, TensorList* tensors, config::Model* model) {
  if (!fla_detail::has_retention_buffers(*model)) return;
  const auto is_buffer = [](const std::string& name) {
    return fla_detail::ends_with(name, fla_detail::kRetentionBuffer);
  };
  std::optional<float> rate;
  for (const auto& [name, tensor] : *tensors) {
    if (!is_buffer(name)) continue;
    const at::Tensor values = tensor.to(at::kFloat);  // [H]
    for (int64_t i = 0; i < values.numel(); ++i) {
      const float value = values.const_data_ptr<float>()[i];
      if (!rate) rate = value;
      if (value != *rate || !std::isfinite(value))
        throw DataError(
            "{}: tensor {}: expected the same finite value for all heads and layers (one constant "
            "retention), got {} beside {}",
            directory, name, value, *rate);
    }
  }
  tensors->erase(std::remove_if(tensors->begin(), tensors->end(),
                                [&](const auto& tensor) { return is_buffer(tensor.first); }),
                 tensors->end());
  // The buffer, not the key, is what the authors' code computes with.
  if (rate) model->osdn->retention_bias = *rate;
}

void add_retention_buffers(const config::Model& model, TensorList* tensors) {
  if (!fla_detail::has_retention_buffers(model)) return;
  for (int64_t layer = 0; layer < model.num_layers; ++layer)
    if (!config::is_attention_layer(model, layer))
      tensors->emplace_back(
          fmt::format("model.layers.{}{}", layer, fla_detail::kRetentionBuffer),
          at::full({config::num_value_heads(model)}, static_cast<float>(model.osdn->retention_bias),
                   at::TensorOptions(at::kFloat)));
}

std::vector<std::string> not_carried(const config::Model& model) {
  std::vector<std::string> notes;
  if (!model.osdn) return notes;
  const config::Osdn& osdn = *model.osdn;
  const bool is_gated = model.backbone == config::Backbone::kGatedDeltaNet;
  if (osdn.clamp_initial_scale)
    notes.emplace_back(
        "model.osdn.clamp_initial_scale: initial_scale was written clamped to the box, as the model uses it");
  if (!osdn.learn_initial_scale && !is_gated)
    notes.emplace_back("model.osdn.learn_initial_scale: false; a reader that trains on will learn it");
  if (osdn.detach)
    notes.emplace_back("model.osdn.detach: true; a reader that trains on will differentiate through d");
  if (is_gated && osdn.hypergradient == config::Hypergradient::kBetaAware &&
      (osdn.retention == config::Retention::kNone || osdn.retention == config::Retention::kConstant))
    notes.emplace_back(
        "model.osdn.retention: without a gate on d the authors' code takes a recurrence of its own, whose "
        "logits were seen to differ by 4e-3");
  return notes;
}

}  // namespace osdn::checkpoint
