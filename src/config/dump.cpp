#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

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

void make_absolute(std::string& path, const std::filesystem::path& base) {
  path = (base / path).lexically_normal().string();
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

Config with_absolute_paths(const Config& config, const std::string& working_directory) {
  const std::filesystem::path base(working_directory);
  Config result = config;
  make_absolute(result.run.directory, base);
  if (result.run.init_from) make_absolute(*result.run.init_from, base);
  for (WeightedSource& source : result.data.train) make_absolute(source.path, base);
  for (std::string& path : result.data.validation) make_absolute(path, base);
  if (result.data.tokenizer) make_absolute(*result.data.tokenizer, base);
  for (std::string& path : result.prepare.input) make_absolute(path, base);
  make_absolute(result.prepare.output, base);
  if (result.prepare.tokenizer_model) make_absolute(*result.prepare.tokenizer_model, base);
  return result;
}

}  // namespace osdn::config
