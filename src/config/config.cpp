#include "config/config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/detail/schema.h"
#include "config/detail/values.h"

namespace osdn::config {
namespace detail {
namespace {

using Found = std::optional<Problem>;

Found check_run(const Run& run) {
  if (run.name == "." || run.name == ".." || run.name.find('/') != std::string::npos)
    return Problem{"run.name", fmt::format("expected the name of a directory without \"/\", got \"{}\" "
                                           "(its parent is run.directory)",
                                           run.name)};
  return std::nullopt;
}

Found check_shape(const Model& model) {
  if (model.backbone != Backbone::kDeltaNet)
    return Problem{"model.backbone",
                   fmt::format("backbone {}: supported here: delta_net", enum_name(model.backbone))};
  const int64_t heads_width = model.num_heads * model.head_dim;
  if (heads_width != model.hidden_size)
    return Problem{"model.hidden_size",
                   fmt::format("expected num_heads x head_dim = {} x {} = {} (backbone delta_net), got {}",
                               model.num_heads, model.head_dim, heads_width, model.hidden_size)};
  return std::nullopt;
}

Found check_stability(const Osdn& osdn, double beta) {
  if (osdn.allow_unstable) return std::nullopt;
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
  if (osdn.box[0] > osdn.box[1])
    return Problem{"model.osdn.box",
                   fmt::format("expected [smallest, largest], got [{}, {}]", osdn.box[0], osdn.box[1])};
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

}  // namespace detail

int64_t intermediate_size(const Model& model) {
  if (model.intermediate_size) return *model.intermediate_size;
  constexpr int64_t kMultiple = 256;
  const int64_t width = model.hidden_size * 8 / 3;
  return (width + kMultiple - 1) / kMultiple * kMultiple;
}

double max_beta(const Model& model) { return model.allow_negative_eigenvalues ? 2.0 : 1.0; }

void validate(const Config& config) {
  if (const std::optional<detail::Problem> problem = detail::find_problem(config))
    throw UserError("{}: {}", problem->key, problem->text);
}

}  // namespace osdn::config
