#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/detail/fla_keys.h"
#include "checkpoint/fla_config.h"

namespace osdn::checkpoint {
namespace fla_detail {
namespace {

constexpr int kMaxConfigDepth = 8;

const std::vector<FixedKey>& common_fixed_keys() {
  static const std::vector<FixedKey> keys = {
      {"attnres_block_size", {nullptr}, "attention over depth is not supported"},
      {"hidden_act", {"swish", "silu"}, "the MLP is a SwiGLU"},
      {"elementwise_affine", {true}, "every norm has a weight"},
      {"is_encoder_decoder", {false}, "this is a decoder"},
      {"add_cross_attention", {false}, "this is a decoder"},
      {"quantization_config", {nullptr}, "weights are read as they are"},
      {"pruned_heads", {nullptr, StrictJson::object()}, "every head is there"},
  };
  return keys;
}

const std::vector<FixedKey>& delta_fixed_keys() {
  static const std::vector<FixedKey> keys = {
      {"use_short_conv", {true}, "q, k and v pass a short convolution"},
      {"conv_bias", {false}, "the convolutions have no bias"},
      {"share_conv_kernel", {false}, "q, k and v have convolutions of their own"},
      {"norm_first", {false}, "blocks normalise their input (tensors attn_norm and mlp_norm)"},
      {"use_rope", {false}, "there are no rotary embeddings outside attention layers"},
  };
  return keys;
}

const std::vector<FixedKey>& delta_net_fixed_keys() {
  static const std::vector<FixedKey> keys = {
      {"use_beta", {true}, "the write strength is learned"},
      {"expand_k", {1}, "keys are as wide as the model"},
      {"use_elu", {false}, "the feature map is named by qk_activation"},
  };
  return keys;
}

/// The peer's width: 256 * ceil(int(hidden * ratio * 2 / 3) / 256). Absent where it is this program's
/// default.
std::optional<int64_t> intermediate_size(Reader& reader, int64_t hidden_size) {
  const double ratio = reader.number("hidden_ratio", 4.0);
  if (reader.find("intermediate_size")) return reader.count("intermediate_size", 0);
  if (ratio == 4.0) return std::nullopt;
  if (!(ratio > 0 && ratio <= 1024)) reader.refuse("hidden_ratio", "a number above 0", StrictJson(ratio));
  const auto width = static_cast<int64_t>(static_cast<double>(hidden_size) * ratio * 2 / 3);
  return std::max<int64_t>(1, (width + 255) / 256) * 256;
}

/// Null is no absent key here: it stands for attention without positions.
double read_rope_theta(Reader& reader) {
  reader.demand_not_null("rope_theta", "a number (attention without rotary embedding is not supported)");
  return reader.number("rope_theta", 10000.0);
}

/// One entry of `attn`: layers and how they attend.
config::Attention attention_entry(const Reader& parent, const StrictJson& json) {
  if (!json.is_object()) parent.refuse("attn", "null, a section or a list of sections", json);
  Reader reader(parent.path() + ": attn", json);
  config::Attention attention;
  const StrictJson* layers = reader.find("layers");
  if (!layers || !layers->is_array()) reader.refuse("layers", "a list of layer numbers", json);
  for (const StrictJson& layer : *layers) {
    if (!layer.is_number_integer() || layer < 0 || layer > (1 << 20))
      reader.refuse("layers", "a list of layer numbers", *layers);
    attention.layers.push_back(layer.get<int64_t>());
  }
  if (!reader.find("num_heads")) reader.refuse("num_heads", "a number of heads", json);
  attention.num_heads = reader.count("num_heads", 0);
  attention.num_kv_heads = reader.optional_count("num_kv_heads");
  if (attention.num_kv_heads == attention.num_heads) attention.num_kv_heads.reset();
  attention.window_size = reader.optional_count("window_size");
  attention.rope_theta = read_rope_theta(reader);
  attention.qkv_bias = reader.flag("qkv_bias", false);
  if (const auto unknown = reader.unknown(); !unknown.empty())
    throw UserError("{}: attn: unknown key {}", parent.path(), unknown.front());
  return attention;
}

config::Attention read_hybrid(Reader& reader) {
  const StrictJson* json = reader.find("attn");
  if (!json) return {};
  if (!json->is_array()) return attention_entry(reader, *json);
  config::Attention all;
  for (const StrictJson& item : *json) {
    config::Attention next = attention_entry(reader, item);
    const auto same = [](const config::Attention& a, const config::Attention& b) {
      return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads &&
             a.window_size == b.window_size && a.rope_theta == b.rope_theta && a.qkv_bias == b.qkv_bias;
    };
    if (!all.layers.empty() && !same(all, next))
      reader.refuse("attn", "the same settings for all of its layers", *json);
    next.layers.insert(next.layers.begin(), all.layers.begin(), all.layers.end());
    all = std::move(next);
  }
  return all;
}

void read_transformer(Reader& reader, config::Model* model) {
  model->attention.num_kv_heads = reader.optional_count("num_kv_heads");
  if (model->attention.num_kv_heads == model->num_heads) model->attention.num_kv_heads.reset();
  model->attention.window_size = reader.optional_count("window_size");
  model->attention.rope_theta = read_rope_theta(reader);
  model->attention.qkv_bias = reader.flag("qkv_bias", false);
  model->attention.qk_norm = reader.flag("qk_norm", false);
}

config::QkActivation read_activation(Reader& reader) {
  using config::QkActivation;
  const std::string name = reader.text("qk_activation", "silu");
  if (name == "silu") return QkActivation::kSilu;
  if (name == "relu") return QkActivation::kRelu;
  if (name == "elu") return QkActivation::kElu;
  if (name == "identity") return QkActivation::kIdentity;
  reader.refuse("qk_activation", "silu, relu, elu or identity", StrictJson(name));
}

/// expand_v relative to the width of the keys, absent where it is this program's default.
void read_value_expand(const Family& family, Reader& reader, config::Model* model) {
  const double expand = reader.number("expand_v", family.value_expand);
  const double size = static_cast<double>(model->head_dim) * expand;
  if (!(expand > 0 && expand <= 64) || std::abs(size - std::round(size)) > 1e-5 * size)
    reader.refuse("expand_v", fmt::format("a whole number of values for heads of {}", model->head_dim),
                  StrictJson(expand));
  if (expand != family.value_expand) model->value_expand = expand;
}

void read_delta_net(Reader& reader, config::Model* model) {
  for (const FixedKey& fixed : delta_net_fixed_keys()) reader.demand(fixed);
  if (reader.flag("use_gate", false)) model->use_gate = true;
  const std::string norm = reader.text("qk_norm", "l2");
  if (norm != "l2" && norm != "sum") reader.refuse("qk_norm", "l2 or sum", StrictJson(norm));
  model->qk_norm = norm == "sum" ? config::QkNorm::kSum : config::QkNorm::kL2;
  model->qk_activation = read_activation(reader);
}

void read_kda(Reader& reader, config::Model* model) {
  model->safe_gate = reader.flag("safe_gate", false);
  if (reader.find("lower_bound")) model->gate_lower_bound = reader.number("lower_bound", 0);
}

void read_delta_layers(const Family& family, Reader& reader, config::Model* model) {
  for (const FixedKey& fixed : delta_fixed_keys()) reader.demand(fixed);
  model->conv_size = reader.count("conv_size", 4);
  read_value_expand(family, reader, model);
  model->attention = read_hybrid(reader);
  if (family.head_dim != 0) {
    model->num_value_heads = reader.optional_count("num_v_heads");
    if (model->num_value_heads == model->num_heads) model->num_value_heads.reset();
  }
  if (family.backbone == config::Backbone::kDeltaNet) read_delta_net(reader, model);
  if (family.backbone == config::Backbone::kGatedDeltaNet) {
    if (!reader.flag("use_gate", true)) model->use_gate = false;
    reader.demand({"output_gate_activation", {"swish", "silu"}, "the output gate is a swish"});
  }
  if (family.backbone == config::Backbone::kKda) read_kda(reader, model);
  if (family.authors) {
    model->osdn = read_osdn(family, reader);
    // The plain models of the authors' code carry its keys as well, switched off.
  } else if (const StrictJson* osdn = reader.find("use_osgm"); osdn && *osdn == false) {
    for (const char* key : {"osgm_eta", "osgm_use_denominator", "osgm_d_min", "osgm_d_max", "osgm_beta_aware",
                            "osgm_decay", "osgm_decay_mode", "osgm_decay_gamma"})
      reader.pass(key);
  } else if (osdn) {
    reader.refuse("use_osgm", fmt::format("false for model_type {}", family.model_type), *osdn);
  }
  if (!family.authors || family.backbone != config::Backbone::kDeltaNet)
    model->allow_negative_eigenvalues = reader.flag("allow_neg_eigval", false);
  if (!model->osdn) return;
  const double beta = config::max_beta(*model);
  model->osdn->allow_unstable = model->osdn->box[1] * beta > 2 || model->osdn->step_size * beta * beta > 2;
}

/// Ranges and combinations, in the words of this program's own keys.
void check_model(const std::string& path, const config::Model& model) {
  config::Config config;
  config.model = model;
  try {
    config::validate(config);
  } catch (const UserError& failure) {
    throw UserError("{}: as {}", path, failure.what());
  }
}

std::string names_of_families() {
  std::string names;
  for (const Family& family : families())
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", family.model_type);
  return names;
}

}  // namespace
}  // namespace fla_detail

FlaModel parse_fla_config(const std::string& path, const std::string& text,
                          const std::vector<std::string>& ignored_keys) {
  const StrictJson json = parse_strict_json(path, text, fla_detail::kMaxConfigDepth);
  fla_detail::Reader reader(path, json);
  FlaModel fla;
  fla.model_type = reader.text("model_type", "");
  const fla_detail::Family* family = fla_detail::find_family(fla.model_type);
  if (!family)
    reader.refuse("model_type", "one of " + fla_detail::names_of_families(), StrictJson(fla.model_type));
  for (const auto& fixed : fla_detail::common_fixed_keys()) reader.demand(fixed);

  config::Model& model = fla.model;
  model.backbone = family->backbone;
  model.hidden_size = reader.count("hidden_size", 2048);
  model.num_layers = reader.count("num_hidden_layers", family->layers);
  model.num_heads = reader.count("num_heads", family->heads);
  if (family->head_dim != 0) {
    model.head_dim = reader.count("head_dim", family->head_dim);
  } else {
    if (model.hidden_size % model.num_heads != 0)
      reader.refuse("num_heads", fmt::format("a divisor of hidden_size {}", model.hidden_size),
                    StrictJson(model.num_heads));
    model.head_dim = model.hidden_size / model.num_heads;
  }
  model.intermediate_size = fla_detail::intermediate_size(reader, model.hidden_size);
  model.vocab_size = reader.count("vocab_size", 32000);
  model.tie_embeddings = reader.flag("tie_word_embeddings", false);
  model.norm_eps = reader.number("norm_eps", 1e-6);
  model.initializer_range = reader.number("initializer_range", 0.02);
  if (family->backbone == config::Backbone::kTransformer)
    fla_detail::read_transformer(reader, &model);
  else
    fla_detail::read_delta_layers(*family, reader, &model);
  fla.ids = {.bos = reader.id("bos_token_id", 1),
             .eos = reader.id("eos_token_id", 2),
             .pad = reader.id("pad_token_id", std::nullopt)};
  fla.max_position_embeddings = reader.count("max_position_embeddings", 2048);
  fla.dtype = reader.text("dtype", reader.text("torch_dtype", ""));

  for (const HarmlessKey& harmless : harmless_fla_keys()) reader.pass(harmless.key);
  for (const std::string& key : ignored_keys) reader.pass(key);
  if (const std::vector<std::string> unknown = reader.unknown(); !unknown.empty()) {
    std::string names;
    for (const std::string& name : unknown) names += (names.empty() ? "" : ", ") + name;
    throw UserError(
        "{}: unknown {} {} for model_type {}; pass --ignore-key {} once you know that it does not change "
        "what the model computes",
        path, unknown.size() == 1 ? "key" : "keys", names, fla.model_type, unknown.front());
  }
  fla_detail::check_model(path, model);
  return fla;
}

}  // namespace osdn::checkpoint
