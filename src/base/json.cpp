#include "base/json.h"

#include "base/error.h"
#include "base/fs.h"

namespace osdn {

bool is_json_integer(const Json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
}

int64_t json_integer(const Json& value) {
  if (!is_json_integer(value))
    throw Json::type_error::create(
        302,
        "expected a whole number, got " + (value.is_number() ? value.dump() : std::string(value.type_name())),
        &value);
  return value.get<int64_t>();
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json read_json(const std::string& path) {
  try {
    return Json::parse(read_file(path));
  } catch (const Json::parse_error& failure) {
    throw DataError("{}: not valid JSON: {}", path, failure.what());
  }
}

}  // namespace osdn
