#include "base/json.h"

#include "base/error.h"
#include "base/fs.h"

namespace osdn {

Json read_json(const std::string& path) {
  try {
    return Json::parse(read_file(path));
  } catch (const Json::parse_error& failure) {
    throw DataError("{}: not valid JSON: {}", path, failure.what());
  }
}

}  // namespace osdn
