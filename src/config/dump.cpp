#include <fmt/format.h>

#include <algorithm>

#include "config/detail/schema.h"
#include "config/yaml.h"

namespace osdn::config {
namespace {

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }

int depth_of(const std::string& key) { return static_cast<int>(std::count(key.begin(), key.end(), '.')); }

std::string one_line_osdn(const Config& config) {
  if (!config.model.osdn) return "null";
  std::string text;
  for (const detail::Field& field : detail::fields())
    if (field.section == "model.osdn")
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", field.name, field.write(config));
  return "{" + text + "}";
}

}  // namespace

std::string dump(const Config& config) {
  std::string text;
  for (const detail::Section& section : detail::sections()) {
    const std::string indent(2 * static_cast<size_t>(depth_of(section.key)), ' ');
    if (section.key == "model.osdn" && !config.model.osdn) {
      text += fmt::format("{}{}: null\n", indent, last_part(section.key));
      continue;
    }
    text += fmt::format("{}{}:\n", indent, last_part(section.key));
    for (const detail::Field& field : detail::fields())
      if (field.section == section.key)
        text += fmt::format("{}  {}: {}\n", indent, field.name, field.write(config));
  }
  return text;
}

std::vector<std::string> differences(const Config& a, const Config& b) {
  std::vector<std::string> lines;
  const bool both_have_osdn = a.model.osdn && b.model.osdn;
  if (a.model.osdn.has_value() != b.model.osdn.has_value())
    lines.push_back(fmt::format("model.osdn: {} -> {}", one_line_osdn(a), one_line_osdn(b)));
  for (const detail::Field& field : detail::fields()) {
    if (field.section == "model.osdn" && !both_have_osdn) continue;
    const std::string before = field.write(a);
    const std::string after = field.write(b);
    if (before != after) lines.push_back(fmt::format("{}: {} -> {}", field.key, before, after));
  }
  return lines;
}

}  // namespace osdn::config
