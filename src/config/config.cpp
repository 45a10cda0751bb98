#include "config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/detail/schema.h"
#include "config/detail/values.h"

namespace osdn::config {
namespace detail {
namespace {

using Found = std::optional<Problem>;

double exact_value_dim(const Model& model) {
  const double expand = model.value_expand.value_or(model.backbone == Backbone::kGatedDeltaNet ? 2.0 : 1.0);
  return static_cast<double>(model.head_dim) * expand;
}

Found check_run(const Run& run) {
  if (run.name == "." || run.name == ".." || run.name.find('/') != std::string::npos)
    return Problem{"run.name", fmt::format("expected the name of a directory without \"/\", got \"{}\" "
                                           "(its parent is run.directory)",
                                           run.name)};
  constexpr size_t kLongest = 255;  // bytes of a file name
  if (run.name.size() > kLongest)
    return Problem{"run.name", fmt::format("expected at most {} bytes, the name of a directory, got {}",
                                           kLongest, run.name.size())};
  return std::nullopt;
}

// Keys that mean something for some backbones only: a value set for another one would do nothing.
Found check_backbone_keys(const Model& model) {
  const std::string name = enum_name(model.backbone);
  const bool is_delta_net = model.backbone == Backbone::kDeltaNet;
  const bool is_kda = model.backbone == Backbone::kKda;
  const auto belongs = [&](const char* key, const char* to) {
    return Problem{key, fmt::format("expected to be absent for backbone {} (it belongs to {})", name, to)};
  };
  if (model.qk_norm != QkNorm::kL2 && !is_delta_net) return belongs("model.qk_norm", "delta_net");
  if (model.qk_activation != QkActivation::kSilu && !is_delta_net)
    return belongs("model.qk_activation", "delta_net");
  if (model.gate_low_rank && !is_kda) return belongs("model.gate_low_rank", "kda");
  if (model.gate_lower_bound && !is_kda) return belongs("model.gate_lower_bound", "kda");
  if (model.safe_gate && !is_kda) return belongs("model.safe_gate", "kda");
  if (model.safe_gate && !model.gate_lower_bound)
    return Problem{"model.safe_gate", "expected model.gate_lower_bound beside it (-5 is usual), got none"};
  if (is_kda && model.use_gate == false)
    return Problem{"model.use_gate",
                   "expected true for backbone kda (its output is always gated), got false"};
  if (model.backbone != Backbone::kTransformer) return std::nullopt;
  if (model.use_gate) return belongs("model.use_gate", "the other backbones");
  if (model.value_expand) return belongs("model.value_expand", "the other backbones");
  if (model.allow_negative_eigenvalues)
    return belongs("model.allow_negative_eigenvalues", "the other backbones");
  if (model.osdn) return belongs("model.osdn", "backbones with a delta rule");
  return std::nullopt;
}

Found check_heads(const Model& model) {
  const std::string name = enum_name(model.backbone);
  const int64_t heads_width = model.num_heads * model.head_dim;
  const bool is_square = model.backbone == Backbone::kDeltaNet || model.backbone == Backbone::kTransformer;
  if (is_square && heads_width != model.hidden_size)
    return Problem{"model.hidden_size",
                   fmt::format("expected num_heads x head_dim = {} x {} = {} (backbone {}), got {}",
                               model.num_heads, model.head_dim, heads_width, name, model.hidden_size)};
  if (is_square && model.num_value_heads && *model.num_value_heads != model.num_heads)
    return Problem{"model.num_value_heads", fmt::format("expected num_heads = {} for backbone {}, got {}",
                                                        model.num_heads, name, *model.num_value_heads)};
  if (num_value_heads(model) % model.num_heads != 0)
    return Problem{"model.num_value_heads", fmt::format("expected a multiple of num_heads = {}, got {}",
                                                        model.num_heads, *model.num_value_heads)};
  const double values = exact_value_dim(model);
  if (values >= 1 && std::abs(values - std::round(values)) > 1e-6)
    return Problem{"model.value_expand",
                   fmt::format("expected a whole number for head_dim x value_expand, got {} x {} = {}",
                               model.head_dim, values / static_cast<double>(model.head_dim), values)};
  if (value_dim(model) < 1)
    return Problem{"model.value_expand", fmt::format("expected at least 1 / head_dim = 1 / {}, got {}",
                                                     model.head_dim, model.value_expand.value_or(0))};
  return std::nullopt;
}

Found check_attention(const Model& model) {
  const Attention& attention = model.attention;
  const bool is_transformer = model.backbone == Backbone::kTransformer;
  if (is_transformer && !attention.layers.empty())
    return Problem{"model.attention.layers",
                   "expected none for backbone transformer (every layer has attention)"};
  for (size_t i = 0; i < attention.layers.size(); ++i) {
    const int64_t layer = attention.layers[i];
    if (layer >= model.num_layers)
      return Problem{"model.attention.layers",
                     fmt::format("expected layers below num_layers = {}, got {}", model.num_layers, layer)};
    if (std::count(attention.layers.begin(), attention.layers.end(), layer) > 1)
      return Problem{"model.attention.layers", fmt::format("expected each layer once, got {} twice", layer)};
  }
  if (!is_transformer && attention.layers.empty()) return std::nullopt;
  const int64_t heads = attention_heads(model);
  if (model.hidden_size % heads != 0 || model.hidden_size / heads % 2 != 0)
    return Problem{"model.attention.num_heads",
                   fmt::format("expected heads of an even dimension hidden_size / num_heads, got {} / {}",
                               model.hidden_size, heads)};
  if (heads % attention_kv_heads(model) != 0)
    return Problem{"model.attention.num_kv_heads", fmt::format("expected a divisor of the {} heads, got {}",
                                                               heads, attention_kv_heads(model))};
  return std::nullopt;
}

Found check_shape(const Model& model) {
  if (const Found found = check_backbone_keys(model)) return found;
  if (const Found found = check_heads(model)) return found;
  return check_attention(model);
}

Found check_stability(const Osdn& osdn, double beta) {
  if (osdn.box[1] * beta > 2)
    return Problem{
        "model.osdn.box",
        fmt::format("expected an upper bound of at most {} (bound x largest beta {} at most 2), got {} "
                    "(the write can diverge; allow_unstable: true permits it)",
                    2 / beta, beta, osdn.box[1])};
  if (osdn.step_size * beta * beta > 2)
    return Problem{
        "model.osdn.step_size",
        fmt::format("expected at most {} (step size x square of the largest beta {} at most 2), got {} "
                    "(the preconditioner can diverge; allow_unstable: true permits it)",
                    2 / (beta * beta), beta, osdn.step_size)};
  return std::nullopt;
}

Found check_osdn(const Model& model) {
  if (!model.osdn) return std::nullopt;
  const Osdn& osdn = *model.osdn;
  if (osdn.preset == "deltanet")
    return Problem{"model.osdn.preset", "deltanet is the plain backbone: expected no osdn section"};
  if (model.qk_norm != QkNorm::kL2)
    return Problem{"model.osdn",
                   "expected model.qk_norm: l2 beside it (its box bounds writes with unit keys)"};
  if (osdn.box[0] > osdn.box[1])
    return Problem{"model.osdn.box",
                   fmt::format("expected [smallest, largest], got [{}, {}]", osdn.box[0], osdn.box[1])};
  if (!osdn.allow_unstable)
    if (const Found found = check_stability(osdn, max_beta(model))) return found;
  const bool is_inside = osdn.box[0] <= osdn.initial_scale && osdn.initial_scale <= osdn.box[1];
  if (osdn.clamp_initial_scale && !is_inside)
    return Problem{
        "model.osdn.initial_scale",
        fmt::format("expected a value inside the box [{}, {}], got {} (outside it d0 has no gradient; widen "
                    "the box or set clamp_initial_scale: false)",
                    osdn.box[0], osdn.box[1], osdn.initial_scale)};
  if (osdn.retention == Retention::kStateGate && model.backbone == Backbone::kDeltaNet)
    return Problem{
        "model.osdn.retention",
        "expected none | constant | own_gate, got state_gate (the state of backbone delta_net has no gate)"};
  if (osdn.anchored && osdn.retention == Retention::kNone)
    return Problem{"model.osdn.anchored",
                   "expected false without retention, got true (set retention as well)"};
  return std::nullopt;
}

Found check_batch(const Config& config) {
  const int64_t length = config.data.sequence_length;
  const int64_t tokens = config.train.global_batch_tokens;
  if (tokens % length != 0) {
    const int64_t below = tokens / length * length;
    return Problem{
        "train.global_batch_tokens",
        fmt::format("expected a multiple of data.sequence_length = {}, got {} (nearest: {}{})", length,
                    tokens, below > 0 ? fmt::format("{} and ", below) : "", below + length)};
  }
  const int64_t sequences = tokens / length;
  if (config.train.micro_batch_sequences && sequences % *config.train.micro_batch_sequences != 0)
    return Problem{
        "train.micro_batch_sequences",
        fmt::format("expected a divisor of the {} sequences of a global batch ({} tokens / {}), got {}",
                    sequences, tokens, length, *config.train.micro_batch_sequences)};
  return std::nullopt;
}

Found check_prepare(const Prepare& prepare) {
  if (prepare.builtin && !prepare.input.empty())
    return Problem{"prepare.builtin", "expected false beside prepare.input, got true (give one of the two)"};
  return std::nullopt;
}

}  // namespace

std::optional<Problem> find_problem(const Config& config) {
  for (const Field& field : fields()) {
    if (!is_present(field, config)) continue;
    if (const std::optional<std::string> value = field.outside(config))
      return Problem{field.key, fmt::format("expected {}, got {}", field.type, *value)};
  }
  if (const Found found = check_run(config.run)) return found;
  if (const Found found = check_shape(config.model)) return found;
  if (const Found found = check_osdn(config.model)) return found;
  if (const Found found = check_batch(config)) return found;
  return check_prepare(config.prepare);
}

std::optional<Problem> find_instability(const Model& model) {
  if (!model.osdn || !model.osdn->allow_unstable) return std::nullopt;
  return check_stability(*model.osdn, max_beta(model));
}

}  // namespace detail

int64_t intermediate_size(const Model& model) {
  if (model.intermediate_size) return *model.intermediate_size;
  constexpr int64_t kMultiple = 256;
  const int64_t width = model.hidden_size * 8 / 3;
  return (width + kMultiple - 1) / kMultiple * kMultiple;
}

int64_t num_value_heads(const Model& model) { return model.num_value_heads.value_or(model.num_heads); }

// The product of the two may lie a rounding below the whole number that it stands for.
int64_t value_dim(const Model& model) { return static_cast<int64_t>(detail::exact_value_dim(model) + 1e-6); }

bool output_gate(const Model& model) {
  return model.use_gate.value_or(model.backbone != Backbone::kDeltaNet);
}

int64_t gate_low_rank(const Model& model) { return model.gate_low_rank.value_or(value_dim(model)); }

int64_t attention_heads(const Model& model) { return model.attention.num_heads.value_or(model.num_heads); }

int64_t attention_kv_heads(const Model& model) {
  return model.attention.num_kv_heads.value_or(attention_heads(model));
}

bool is_attention_layer(const Model& model, int64_t layer) {
  const std::vector<int64_t>& layers = model.attention.layers;
  return model.backbone == Backbone::kTransformer ||
         std::find(layers.begin(), layers.end(), layer) != layers.end();
}

double max_beta(const Model& model) { return model.allow_negative_eigenvalues ? 2.0 : 1.0; }

void validate(const Config& config) {
  if (const std::optional<detail::Problem> problem = detail::find_problem(config))
    throw UserError("{}: {}", problem->key, problem->text);
}

}  // namespace osdn::config
