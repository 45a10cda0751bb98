// JSON through nlohmann-json, keys in the order they were written.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace osdn {

using Json = nlohmann::ordered_json;

/// Whether a value is a whole number that an int64 holds.
bool is_json_integer(const Json& value);

/// That number; Json::exception for anything else. get<int64_t>() would convert any number, and behave in an
/// undefined way for one outside of the range (1e99 in a file).
int64_t json_integer(const Json& value);

/// Its text: with an indent line by line, else in one line. What is no UTF-8, such as a path of the user's,
/// has the replacement character in it.
std::string json_text(const Json& value, int indent = -1);

/// Parses a file. Throws DataError with path and position when it is not JSON, EnvironmentError when
/// unreadable.
Json read_json(const std::string& path);

}  // namespace osdn
