// The one table of configuration keys. Strict loading, dump, differences, range checks and docs/config.md all
// read it; a key that is added in config/schema.cpp appears in all of them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/detail/node.h"

namespace osdn::config::detail {

struct Field {
  std::string key;      // dotted: "model.osdn.step_size"
  std::string section;  // "model.osdn"
  std::string name;     // "step_size"
  std::string type;     // completes "expected ..."
  std::string meaning;  // with its unit, for docs/config.md
  /// Reads the value or throws UserError with its place.
  std::function<void(const Node&, Config&)> read;
  /// The value as YAML in one line.
  std::function<std::string(const Config&)> write;
  /// The value as a message shows it, when it is out of range.
  std::function<std::optional<std::string>(const Config&)> outside;
};

struct Section {
  std::string key;
  std::string meaning;
};

/// In the order of docs/config.md and of dump(); a subsection follows the fields of its section.
const std::vector<Section>& sections();
const std::vector<Field>& fields();

bool is_section(const std::string& key);
const Field* find_field(const std::string& key);

/// False for the fields of model.osdn in a configuration without that section: they can't be read or written.
bool is_present(const Field& field, const Config& config);

/// The first value or combination that is refused.
struct Problem {
  std::string key;
  std::string text;  // "expected ..., got ... (what to do)"
};
std::optional<Problem> find_problem(const Config& config);
/// What allow_unstable permits beyond the limits of stability, for a warning.
std::optional<Problem> find_instability(const Model& model);

}  // namespace osdn::config::detail
