// Strict YAML for config.h. Unknown or duplicate key, wrong type, value out of range: UserError with file,
// line, key, what was expected, what came, and the nearest valid name.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace osdn::config {

/// Loads a file, applies `key.path=value` overrides (values are parsed as YAML), fills presets in, expands
/// `~` and environment variables in paths, validates. Throws UserError (content, overrides) or
/// EnvironmentError (unreadable file).
Config load(const std::string& path, const std::vector<std::string>& overrides);

/// As load, from text; `origin` stands for the file name in messages.
Config load_text(const std::string& text, const std::string& origin,
                 const std::vector<std::string>& overrides);

/// The whole effective configuration, every key written, readable by load and by YAML 1.1 readers.
std::string dump(const Config& config);

/// Dotted keys whose values differ, as "key: a -> b".
std::vector<std::string> differences(const Config& a, const Config& b);

/// docs/config.md: every key, type, default, meaning.
std::string reference_page();

}  // namespace osdn::config
