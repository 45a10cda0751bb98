#include <algorithm>

#include "base/error.h"
#include "checkpoint/detail/fla_keys.h"

namespace osdn::checkpoint::fla_detail {

const std::vector<Family>& families() {
  using config::Backbone;
  static const std::vector<Family> all = {
      {"delta_net", Backbone::kDeltaNet, false, "DeltaNetForCausalLM", 24, 16, 0, 1.0},
      {"osla_delta_net", Backbone::kDeltaNet, true, "OSDNForCausalLM", 24, 16, 0, 1.0},
      {"gated_deltanet", Backbone::kGatedDeltaNet, false, "GatedDeltaNetForCausalLM", 21, 6, 256, 2.0},
      {"os_gated_deltanet", Backbone::kGatedDeltaNet, true, "OSGDNForCausalLM", 21, 6, 256, 2.0},
      {"kda", Backbone::kKda, false, "KDAForCausalLM", 24, 16, 128, 1.0},
      {"os_kda", Backbone::kKda, true, "OSKDAForCausalLM", 24, 16, 128, 1.0},
      {"transformer", Backbone::kTransformer, false, "TransformerForCausalLM", 24, 32, 0, 1.0},
  };
  return all;
}

const Family* find_family(const std::string& model_type) {
  for (const Family& family : families())
    if (family.model_type == model_type) return &family;
  return nullptr;
}

const Family& family_of(const config::Model& model) {
  for (const Family& family : families())
    if (family.backbone == model.backbone && family.authors == model.osdn.has_value()) return family;
  throw InternalError("fla_config: no family for this backbone");
}

const StrictJson* Reader::find(const char* key) {
  known_.insert(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

int64_t Reader::count(const char* key, int64_t otherwise) { return optional_count(key).value_or(otherwise); }

std::optional<int64_t> Reader::optional_count(const char* key) {
  const StrictJson* value = find(key);
  if (!value) return std::nullopt;
  constexpr int64_t kLargest = int64_t{1} << 30;
  if (!value->is_number_integer() || *value < 1 || *value > kLargest)
    refuse(key, fmt::format("a whole number from 1 to {}", kLargest), *value);
  return value->get<int64_t>();
}

double Reader::number(const char* key, double otherwise) {
  const StrictJson* value = find(key);
  if (!value) return otherwise;
  if (!value->is_number()) refuse(key, "a number", *value);
  return value->get<double>();
}

bool Reader::flag(const char* key, bool otherwise) {
  const StrictJson* value = find(key);
  if (!value) return otherwise;
  if (!value->is_boolean()) refuse(key, "true or false", *value);
  return value->get<bool>();
}

std::string Reader::text(const char* key, const std::string& otherwise) {
  const StrictJson* value = find(key);
  if (!value) return otherwise;
  if (!value->is_string()) refuse(key, "a string", *value);
  return value->get<std::string>();
}

std::optional<int64_t> Reader::id(const char* key, std::optional<int64_t> otherwise) {
  known_.insert(key);
  const auto found = json_.find(key);
  if (found == json_.end()) return otherwise;
  if (found->is_null()) return std::nullopt;
  if (!found->is_number_integer()) refuse(key, "a token id or null", *found);
  const auto value = found->get<int64_t>();
  return value < 0 ? std::nullopt : std::optional(value);
}

void Reader::demand(const FixedKey& fixed) {
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

void Reader::demand_not_null(const char* key, const std::string& expected) const {
  const auto found = json_.find(key);
  if (found != json_.end() && found->is_null()) refuse(key, expected, *found);
}

std::vector<std::string> Reader::unknown() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : json_.items())
    if (!known_.count(key)) names.push_back(key);
  return names;
}

void Reader::refuse(const std::string& key, const std::string& expected, const StrictJson& value) const {
  std::string got = value.dump();
  if (got.size() > 80) got = got.substr(0, 80) + " ...";
  throw UserError("{}: {}: expected {}, got {}", path_, key, expected, got);
}

}  // namespace osdn::checkpoint::fla_detail
