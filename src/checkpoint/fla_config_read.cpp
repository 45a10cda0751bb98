#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/detail/strict_json.h"
#include "checkpoint/fla_config.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace fla_config_read_detail {

constexpr int kMaxConfigDepth = 8;
// What the authors' kernels take for a null d_max.
constexpr double kAuthorsNoUpperLimit = 1e9;

/// A key that changes the mathematics and has one supported meaning.
struct FixedKey {
  const char* key;
  std::vector<StrictJson> accepted;
  const char* why;
};

const std::vector<FixedKey>& fixed_keys() {
  static const std::vector<FixedKey> keys = {
      {"attn", {nullptr}, "layers of softmax attention are not supported"},
      {"attnres_block_size", {nullptr}, "attention over depth is not supported"},
      {"hidden_act", {"swish", "silu"}, "the MLP is a SwiGLU"},
      {"qk_norm", {"l2"}, "queries and keys are L2-normalised"},
      {"qk_activation", {"silu"}, "queries and keys pass a SiLU"},
      {"use_beta", {true}, "the write strength is learned"},
      {"use_short_conv", {true}, "q, k and v pass a short convolution"},
      {"conv_bias", {false}, "the convolutions have no bias"},
      {"share_conv_kernel", {false}, "q, k and v have convolutions of their own"},
      {"expand_k", {1}, "keys are as wide as the model"},
      {"expand_v", {1}, "values are as wide as the model"},
      {"norm_first", {false}, "blocks normalise their input (tensors attn_norm and mlp_norm)"},
      {"use_rope", {false}, "there are no rotary embeddings"},
      {"use_elu", {false}, "there is no ELU feature map"},
      {"is_encoder_decoder", {false}, "this is a decoder"},
      {"add_cross_attention", {false}, "this is a decoder"},
      {"quantization_config", {nullptr}, "weights are read as they are"},
      {"pruned_heads", {nullptr, StrictJson::object()}, "every head is there"},
  };
  return keys;
}

const std::vector<FixedKey>& authors_fixed_keys() {
  static const std::vector<FixedKey> keys = {
      {"use_osgm", {true}, "without it the authors' code runs another rule (OSLA)"},
      {"osgm_decay_mode",
       {"none", "constant", "data_dependent"},
       "a learned rate per head and moving averages have no counterpart"},
      {"osgm_beta_aware", {false}, "the authors' DeltaNet kernels are beta-free"},
      {"allow_neg_eigval", {false}, "the authors' model code does not read it"},
  };
  return keys;
}

/// Typed access that remembers which keys it has seen.
class Reader {
 public:
  Reader(const std::string& path, const StrictJson& json) : path_(path), json_(json) {}

  const StrictJson* find(const char* key) {
    known_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  int64_t count(const char* key, int64_t otherwise) {
    const StrictJson* value = find(key);
    if (!value) return otherwise;
    constexpr int64_t kLargest = int64_t{1} << 30;
    if (!value->is_number_integer() || *value < 1 || *value > kLargest)
      refuse(key, fmt::format("a whole number from 1 to {}", kLargest), *value);
    return value->get<int64_t>();
  }
  double number(const char* key, double otherwise) {
    const StrictJson* value = find(key);
    if (!value) return otherwise;
    if (!value->is_number()) refuse(key, "a number", *value);
    return value->get<double>();
  }
  bool flag(const char* key, bool otherwise) {
    const StrictJson* value = find(key);
    if (!value) return otherwise;
    if (!value->is_boolean()) refuse(key, "true or false", *value);
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& otherwise) {
    const StrictJson* value = find(key);
    if (!value) return otherwise;
    if (!value->is_string()) refuse(key, "a string", *value);
    return value->get<std::string>();
  }
  /// Absent: `otherwise`; null: none; lists (several ends of a text) are no id of this program.
  std::optional<int64_t> id(const char* key, std::optional<int64_t> otherwise) {
    known_.insert(key);
    const auto found = json_.find(key);
    if (found == json_.end()) return otherwise;
    if (found->is_null()) return std::nullopt;
    if (!found->is_number_integer()) refuse(key, "a token id or null", *found);
    const auto value = found->get<int64_t>();
    return value < 0 ? std::nullopt : std::optional(value);
  }
  void demand(const FixedKey& fixed) {
    known_.insert(fixed.key);
    const auto found = json_.find(fixed.key);
    if (found == json_.end()) return;
    for (const StrictJson& accepted : fixed.accepted)
      if (*found == accepted) return;
    std::string expected;
    for (const StrictJson& accepted : fixed.accepted)
      expected += (expected.empty() ? "" : " or ") + accepted.dump();
    refuse(fixed.key, fmt::format("{} ({})", expected, fixed.why), *found);
  }
  void pass(const std::string& key) { known_.insert(key); }
  std::vector<std::string> unknown() const {
    std::vector<std::string> names;
    for (const auto& [key, value] : json_.items())
      if (!known_.count(key)) names.push_back(key);
    return names;
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& expected,
                           const StrictJson& value) const {
    std::string got = value.dump();
    if (got.size() > 80) got = got.substr(0, 80) + " ...";
    throw UserError("{}: {}: expected {}, got {}", path_, key, expected, got);
  }

 private:
  const std::string& path_;
  const StrictJson& json_;
  std::set<std::string> known_;
};

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

config::Osdn authors_osdn(const std::string& path, Reader& reader) {
  for (const FixedKey& fixed : authors_fixed_keys()) reader.demand(fixed);
  if (!reader.find("use_osgm"))
    throw UserError(
        "{}: use_osgm: expected true, got nothing (without it the authors' code runs another rule)", path);
  config::Osdn osdn;
  osdn.hypergradient = config::Hypergradient::kBetaFree;
  // d0 is used as it was learned, also outside the box.
  osdn.clamp_initial_scale = false;
  osdn.step_size = reader.number("osgm_eta", 1.0);
  osdn.divide_by_key_norm = reader.flag("osgm_use_denominator", false);
  osdn.box = {reader.number("osgm_d_min", 0.0), reader.number("osgm_d_max", kAuthorsNoUpperLimit)};
  const std::string mode = reader.text("osgm_decay_mode", "none");
  if (mode == "none" && reader.flag("osgm_decay", false))
    reader.refuse("osgm_decay", "false (a learned rate per head has no counterpart)", StrictJson(true));
  reader.pass("osgm_decay");
  const double rate = reader.number("osgm_decay_gamma", 0.999);
  if (mode == "constant") {
    if (!(rate > 0 && rate < 1))
      reader.refuse("osgm_decay_gamma", "a number between 0 and 1", StrictJson(rate));
    osdn.retention = config::Retention::kConstant;
    osdn.retention_bias = static_cast<float>(std::log(rate / (1.0 - rate)));  // fp32, as their buffer
  } else if (mode == "data_dependent") {
    osdn.retention = config::Retention::kOwnGate;
  }
  osdn.allow_unstable = osdn.box[1] > 2 || osdn.step_size > 2;
  return osdn;
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

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace fla_config_read_detail

FlaModel parse_fla_config(const std::string& path, const std::string& text,
                          const std::vector<std::string>& ignored_keys) {
  const StrictJson json = parse_strict_json(path, text, fla_config_read_detail::kMaxConfigDepth);
  fla_config_read_detail::Reader reader(path, json);
  FlaModel fla;
  fla.model_type = reader.text("model_type", "");
  const bool authors = fla.model_type == "osla_delta_net";
  if (!authors && fla.model_type != "delta_net")
    reader.refuse("model_type", "\"delta_net\" or \"osla_delta_net\"", StrictJson(fla.model_type));
  for (const auto& fixed : fla_config_read_detail::fixed_keys()) reader.demand(fixed);

  config::Model& model = fla.model;
  model.hidden_size = reader.count("hidden_size", 2048);
  model.num_layers = reader.count("num_hidden_layers", 24);
  model.num_heads = reader.count("num_heads", 16);
  if (model.hidden_size % model.num_heads != 0)
    reader.refuse("num_heads", fmt::format("a divisor of hidden_size {}", model.hidden_size),
                  StrictJson(model.num_heads));
  model.head_dim = model.hidden_size / model.num_heads;
  model.intermediate_size = fla_config_read_detail::intermediate_size(reader, model.hidden_size);
  model.vocab_size = reader.count("vocab_size", 32000);
  model.conv_size = reader.count("conv_size", 4);
  model.tie_embeddings = reader.flag("tie_word_embeddings", false);
  model.norm_eps = reader.number("norm_eps", 1e-6);
  model.initializer_range = reader.number("initializer_range", 0.02);
  model.use_gate = reader.flag("use_gate", false);
  if (authors)
    model.osdn = fla_config_read_detail::authors_osdn(path, reader);
  else
    model.allow_negative_eigenvalues = reader.flag("allow_neg_eigval", false);
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
        "what "
        "the model computes",
        path, unknown.size() == 1 ? "key" : "keys", names, fla.model_type, unknown.front());
  }
  fla_config_read_detail::check_model(path, model);
  return fla;
}

void take_retention_buffers(const std::string& directory, TensorList* tensors, config::Model* model) {
  if (!model->osdn || model->osdn->retention != config::Retention::kConstant) return;
  std::optional<float> rate;
  for (const auto& [name, tensor] : *tensors) {
    if (!fla_config_read_detail::ends_with(name, ".attn.osgm_gamma_log")) continue;
    const at::Tensor values = tensor.to(at::kFloat);  // [H]
    for (int64_t i = 0; i < values.numel(); ++i) {
      const float value = values.const_data_ptr<float>()[i];
      if (!rate) rate = value;
      if (value != *rate || !std::isfinite(value))
        throw DataError(
            "{}: tensor {}: expected the same finite value for all heads and layers (one constant "
            "retention), "
            "got {} beside {}",
            directory, name, value, *rate);
    }
  }
  tensors->erase(std::remove_if(tensors->begin(), tensors->end(),
                                [](const auto& tensor) {
                                  return fla_config_read_detail::ends_with(tensor.first,
                                                                           ".attn.osgm_gamma_log");
                                }),
                 tensors->end());
  // The buffer, not the key, is what the authors' code computes with.
  if (rate) model->osdn->retention_bias = *rate;
}

}  // namespace osdn::checkpoint
