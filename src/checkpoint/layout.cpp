#include "checkpoint/layout.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"

namespace osdn::checkpoint {
namespace layout_detail {

/// A run of 1 to 18 digits as a number (18: always below 2^63).
std::optional<int64_t> parse_digits(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

bool take_prefix(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

}  // namespace layout_detail

std::vector<std::string> list_names(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(directory, failure), end; !failure && entry != end;
       entry.increment(failure))
    names.push_back(entry->path().filename().string());
  if (failure && failure != std::errc::no_such_file_or_directory)
    throw EnvironmentError("{}: cannot list the directory: {}", directory, failure.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::string step_name(int64_t step) { return fmt::format("step_{:08}", step); }

std::optional<int64_t> parse_step_name(std::string_view name) {
  if (!layout_detail::take_prefix(&name, "step_")) return std::nullopt;
  return layout_detail::parse_digits(name);
}

std::string optimizer_name(int64_t rank, int64_t world_size) {
  return fmt::format("optimizer-{}-of-{}.safetensors", rank, world_size);
}

bool is_optimizer_name(std::string_view name) {
  return name.starts_with("optimizer-") && name.ends_with(".safetensors");
}

std::string temporary_name(int64_t step) { return fmt::format(".tmp-{}-{}", step_name(step), ::getpid()); }

bool is_leftover(std::string_view name) {
  if (layout_detail::take_prefix(&name, "latest.tmp-")) return layout_detail::parse_digits(name).has_value();
  if (!layout_detail::take_prefix(&name, ".tmp-")) return false;
  const size_t dash = name.find('-');
  if (dash == std::string_view::npos || !parse_step_name(name.substr(0, dash))) return false;
  name.remove_prefix(dash + 1);
  return layout_detail::parse_digits(name.substr(0, name.find(".old-"))).has_value();
}

std::vector<StepEntry> list_steps(const std::string& directory, std::vector<std::string>* strangers) {
  std::vector<StepEntry> steps;
  for (const std::string& name : list_names(directory)) {
    if (!name.starts_with("step_")) continue;
    const auto step = parse_step_name(name);
    std::error_code failure;  // an entry that can't be looked at is no checkpoint
    const auto status = std::filesystem::symlink_status(directory + "/" + name, failure);
    const bool is_directory = std::filesystem::is_directory(status);  // a link could lead out of the run
    if (step && is_directory)
      steps.push_back({*step, name});
    else if (strangers)
      strangers->push_back(name +
                           (step ? ": not a directory" : ": not a checkpoint's name (step_ and digits)"));
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const StepEntry& a, const StepEntry& b) { return a.step < b.step; });
  return steps;
}

void remove_leftovers(const std::string& directory) {
  for (const std::string& name : list_names(directory)) {
    if (!is_leftover(name)) continue;
    const std::string path = directory + "/" + name;
    log::warning("{}: left unfinished by a process that ended: removed", path);
    remove_tree(path);
  }
}

std::string base_name(const std::string& path) {
  std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  return normal.filename().string();
}

void remove_tree(const std::string& path) {
  std::error_code failure;
  std::filesystem::remove_all(path, failure);
  if (failure) log::warning("{}: cannot remove: {}", path, failure.message());
}

}  // namespace osdn::checkpoint
