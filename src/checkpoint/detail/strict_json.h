// JSON out of files that come from elsewhere. Refused beyond what a plain parser refuses: a key given twice
// in one object, and deep nesting.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace osdn::checkpoint {

// Not the ordered JSON of base: its linear search would make a hostile header quadratic.
using StrictJson = nlohmann::json;

/// `where` names the text in messages ("x.safetensors: header"). DataError unless it is one JSON object.
StrictJson parse_strict_json(const std::string& where, const std::string& text, int max_depth);

}  // namespace osdn::checkpoint
