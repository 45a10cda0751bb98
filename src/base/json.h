// JSON through nlohmann-json, keys in the order they were written.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace osdn {

using Json = nlohmann::ordered_json;

/// Parses a file. Throws DataError with path and position when it is not JSON, EnvironmentError when
/// unreadable.
Json read_json(const std::string& path);

}  // namespace osdn
