#include "checkpoint/detail/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace osdn::checkpoint {
namespace strict_json_detail {

// The parser quotes what it read last, which may be the whole file.
constexpr size_t kMaxReasonChars = 300;

std::string shortened(std::string text) {
  if (text.size() > kMaxReasonChars) text = text.substr(0, kMaxReasonChars) + " ...";
  return text;
}

}  // namespace strict_json_detail

StrictJson parse_strict_json(const std::string& where, const std::string& text, int max_depth) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, StrictJson::parse_event_t event, StrictJson& parsed) {
    if (depth > max_depth) throw DataError("{} nests deeper than {} levels", where, max_depth);
    if (event == StrictJson::parse_event_t::object_start) keys.emplace_back();
    if (event == StrictJson::parse_event_t::object_end) keys.pop_back();
    if (event == StrictJson::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw DataError("{} names \"{}\" twice", where,
                      strict_json_detail::shortened(parsed.get<std::string>()));
    return true;
  };
  try {
    StrictJson json = StrictJson::parse(text, watch);
    if (!json.is_object()) throw DataError("{} is no JSON object", where);
    return json;
  } catch (const StrictJson::exception& failure) {
    throw DataError("{} is not valid JSON ({})", where, strict_json_detail::shortened(failure.what()));
  }
}

}  // namespace osdn::checkpoint
