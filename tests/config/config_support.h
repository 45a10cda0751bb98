// Helpers of the configuration tests.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "config/yaml.h"

namespace osdn::config::test {

/// The text of the UserError that loading ends with; empty when it loads.
inline std::string load_error(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    load_text(text, "c.yaml", overrides);
  } catch (const UserError& failure) {
    return failure.what();
  }
  return {};
}

inline std::string validation_error(const Config& config) {
  try {
    validate(config);
  } catch (const UserError& failure) {
    return failure.what();
  }
  return {};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// One line that starts as wanted: what a message must be.
inline bool is_line_starting(const std::string& message, const std::string& start) {
  return message.rfind(start, 0) == 0 && message.find('\n') == std::string::npos;
}

inline Config load_ok(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return load_text(text, "c.yaml", overrides);
}

}  // namespace osdn::config::test
