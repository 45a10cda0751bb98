// Named sets of values for model.osdn. Values: docs/config.md, "Presets".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace osdn::config::detail {

struct Preset {
  std::string name;
  std::string meaning;
  std::optional<Osdn> osdn;  // undefined: the plain backbone
};

const std::vector<Preset>& presets();
/// Null when there is none of that name.
const Preset* find_preset(std::string_view name);
std::vector<std::string> preset_names();

}  // namespace osdn::config::detail
