#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "config/detail/presets.h"
#include "config/detail/schema.h"
#include "config/detail/suggest.h"
#include "config/detail/values.h"
#include "config/yaml.h"

namespace osdn::config {
namespace {

using detail::Field;
using detail::join_key;
using detail::Node;
using detail::NodeEntry;

constexpr const char* kOsdnSection = "model.osdn";
constexpr const char* kPresetKey = "model.osdn.preset";

std::vector<std::string> names_in_section(const std::string& section) {
  std::vector<std::string> names;
  for (const Field& field : detail::fields())
    if (field.section == section) names.push_back(field.name);
  for (const detail::Section& candidate : detail::sections()) {
    const size_t dot = candidate.key.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : candidate.key.substr(0, dot);
    if (parent == section)
      names.push_back(dot == std::string::npos ? candidate.key : candidate.key.substr(dot + 1));
  }
  return names;
}

// Fields of that name in any section, as dotted keys.
std::vector<std::string> keys_named(const std::string& name) {
  std::vector<std::string> keys;
  for (const Field& field : detail::fields())
    if (field.name == name) keys.push_back(field.key);
  return keys;
}

[[noreturn]] void fail_unknown(const NodeEntry& entry, const std::string& section, const std::string& key) {
  const std::vector<std::string> valid = names_in_section(section);
  std::string name = entry.key;
  const size_t last_dot = name.rfind('.');
  if (last_dot != std::string::npos) name = name.substr(last_dot + 1);

  std::string hint;
  const std::vector<std::string> elsewhere = keys_named(name);
  if (const std::string near = detail::nearest(entry.key, valid); !near.empty()) {
    hint = fmt::format("did you mean {}?", join_key(section, near));
  } else if (!elsewhere.empty()) {
    hint = fmt::format("the key is {}", fmt::join(elsewhere, " or "));
  } else if (const std::string synonym = detail::known_synonym(name); !synonym.empty()) {
    hint = fmt::format("did you mean {}?", synonym);
  } else {
    std::vector<std::string> all;
    for (const Field& field : detail::fields()) all.push_back(field.name);
    const std::string near_any = detail::nearest(name, all);
    if (!near_any.empty()) hint = fmt::format("did you mean {}?", fmt::join(keys_named(near_any), " or "));
  }
  throw UserError("{}: {}: unknown key{}; valid keys {}: {}", entry.where(), key,
                  hint.empty() ? "" : fmt::format(" ({})", hint),
                  section.empty() ? "at the top" : fmt::format("in {}", section), fmt::join(valid, ", "));
}

void read_section(const Node& node, const std::string& section, Config& config);

// The preset first, so that the section's other keys override it wherever they stand.
void read_osdn(const Node& node, Config& config) {
  config.model.osdn.reset();
  if (node.kind == Node::Kind::kNull) return;
  if (node.kind == Node::Kind::kScalar)
    detail::fail_value(
        node, kOsdnSection, "a section of keys",
        detail::find_preset(node.text) != nullptr ? fmt::format("write {{preset: {}}}", node.text) : "");
  config.model.osdn.emplace();
  const Node* preset_node = node.kind == Node::Kind::kMap ? node.find("preset") : nullptr;
  if (preset_node != nullptr) {
    detail::find_field(kPresetKey)->read(*preset_node, config);
    if (config.model.osdn->preset) config.model.osdn = detail::find_preset(*config.model.osdn->preset)->osdn;
    if (!config.model.osdn) {
      for (const NodeEntry& entry : node.entries)
        if (entry.key != "preset")
          throw UserError("{}: {}: expected no key beside preset: deltanet (the plain backbone)",
                          entry.where(), join_key(kOsdnSection, entry.key));
      return;
    }
  }
  read_section(node, kOsdnSection, config);
}

void read_section(const Node& node, const std::string& section, Config& config) {
  if (node.kind == Node::Kind::kNull) return;  // every key of it is commented out
  if (node.kind != Node::Kind::kMap) detail::fail_value(node, section, "a section of keys");
  for (const NodeEntry& entry : node.entries) {
    const std::string key = join_key(section, entry.key);
    if (entry.key.find('.') != std::string::npos) fail_unknown(entry, section, key);  // dots belong to --set
    if (key == kOsdnSection) {
      read_osdn(entry.value, config);
    } else if (detail::is_section(key)) {
      read_section(entry.value, key, config);
    } else if (const Field* field = detail::find_field(key)) {
      // yaml-cpp places an absent value at whatever comes next; the key's own line is where to look.
      Node value = entry.value;
      if (value.kind == Node::Kind::kNull) value.line = entry.line;
      field->read(value, config);
    } else {
      fail_unknown(entry, section, key);
    }
  }
}

struct Override {
  std::vector<std::string> path;
  Node value;
};

// Mappings override key by key, so that `--set optimizer={eps: 1.0e-8}` leaves the rest of the section alone.
void flatten(std::vector<std::string> path, Node value, std::vector<Override>& overrides) {
  const std::string key = fmt::format("{}", fmt::join(path, "."));
  if (value.kind != Node::Kind::kMap || !detail::is_section(key)) {
    overrides.push_back({std::move(path), std::move(value)});
    return;
  }
  for (NodeEntry& entry : value.entries) {
    std::vector<std::string> child = path;
    child.push_back(entry.key);
    flatten(std::move(child), std::move(entry.value), overrides);
  }
  // An empty section still turns it on.
  if (value.entries.empty()) overrides.push_back({std::move(path), std::move(value)});
}

std::vector<Override> parse_overrides(const std::vector<std::string>& texts) {
  std::vector<Override> overrides;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      throw UserError("--set: expected key=value, got \"{}\" (for example --set train.steps=100)", text);
    const std::string key = text.substr(0, equals);
    std::vector<std::string> path;
    for (size_t start = 0; start <= key.size();) {
      const size_t dot = std::min(key.find('.', start), key.size());
      path.push_back(key.substr(start, dot - start));
      if (path.back().empty()) throw UserError("--set: expected a key such as train.steps, got \"{}\"", key);
      start = dot + 1;
    }
    flatten(std::move(path), detail::parse_override(text.substr(equals + 1), key), overrides);
  }
  return overrides;
}

void set_value(Node& root, const Override& change) {
  Node* node = &root;
  std::string key;
  for (const std::string& part : change.path) {
    if (node->kind == Node::Kind::kNull) {
      node->kind = Node::Kind::kMap;
      node->origin = change.value.origin;
      node->line = 0;
    }
    if (node->kind != Node::Kind::kMap)
      throw UserError("--set: {}: unknown key ({} is not a section)", join_key(key, part), key);
    key = join_key(key, part);
    Node* child = nullptr;
    for (NodeEntry& entry : node->entries)
      if (entry.key == part) child = &entry.value;
    if (child == nullptr) {
      node->entries.push_back({part, change.value.origin, 0, Node{}});
      child = &node->entries.back().value;
      child->origin = change.value.origin;
    }
    node = child;
  }
  if (change.value.kind == Node::Kind::kMap && change.value.entries.empty() && node->kind == Node::Kind::kMap)
    return;
  *node = change.value;
}

// The file may be an effective configuration, which writes every key: they would all override the new preset.
void forget_osdn_keys(Node& root) {
  for (NodeEntry& section : root.entries) {
    if (section.key != "model" || section.value.kind != Node::Kind::kMap) continue;
    for (NodeEntry& entry : section.value.entries)
      if (entry.key == "osdn") entry.value.entries.clear();
  }
}

void apply_overrides(Node& root, const std::vector<std::string>& texts) {
  const std::vector<Override> overrides = parse_overrides(texts);
  for (const Override& change : overrides)
    if (fmt::format("{}", fmt::join(change.path, ".")) == kPresetKey) forget_osdn_keys(root);
  for (const Override& change : overrides) set_value(root, change);
}

// Where the key, or the nearest section above it, stands.
std::string place_of(const Node& root, const std::string& key, const std::string& origin) {
  std::string place = origin;
  const Node* node = &root;
  for (size_t start = 0; start < key.size() && node != nullptr;) {
    const size_t dot = std::min(key.find('.', start), key.size());
    const Node* next = nullptr;
    for (const NodeEntry& entry : node->entries) {
      if (entry.key != key.substr(start, dot - start)) continue;
      place = entry.where();
      next = &entry.value;
    }
    if (next != nullptr && next->kind == Node::Kind::kScalar) place = next->where();
    node = next;
    start = dot + 1;
  }
  return place;
}

}  // namespace

Config load_text(const std::string& text, const std::string& origin,
                 const std::vector<std::string>& overrides) {
  Node root = detail::parse_document(text, origin);
  if (root.kind == Node::Kind::kNull)
    throw UserError(
        "{}: expected sections such as run, model and data, got an empty file (docs/config.md lists the "
        "keys)",
        origin);
  if (root.kind != Node::Kind::kMap)
    throw UserError("{}: expected sections such as run, model and data, got {} (is a colon missing?)",
                    root.where(), root.described());
  apply_overrides(root, overrides);
  Config config;
  read_section(root, "", config);
  if (const std::optional<detail::Problem> problem = detail::find_problem(config))
    throw UserError("{}: {}: {}", place_of(root, problem->key, origin), problem->key, problem->text);
  return config;
}

Config load(const std::string& path, const std::vector<std::string>& overrides) {
  const std::string text = read_named_file(path);
  Config config = load_text(text, path, overrides);
  if (!text.empty() && text.back() != '\n')
    log::warning("{}: the last line does not end; if the file was cut off, its last value is wrong", path);
  if (const std::optional<detail::Problem> risk = detail::find_instability(config.model))
    log::warning("{}: {}: {}", path, risk->key, risk->text);
  return config;
}

}  // namespace osdn::config
