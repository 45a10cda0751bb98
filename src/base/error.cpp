#include "base/error.h"

namespace osdn {

void assertion_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw InternalError("{}:{}: assertion failed: {} ({})", file, line, condition, message);
}

}  // namespace osdn
