#include "base/utf8.h"

#include <string>

#include "tests/support/catch.h"

namespace osdn {

TEST_CASE("invalid UTF-8 is found at its first byte", "[utf8]") {
  CHECK(first_invalid_utf8("a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80") == std::string_view::npos);
  CHECK(first_invalid_utf8("ab\xC3") == 2);
  CHECK(first_invalid_utf8("a\xC0\x80") == 1);         // overlong
  CHECK(first_invalid_utf8("\xED\xA0\x80") == 0);      // surrogate
  CHECK(first_invalid_utf8("\xF4\x90\x80\x80") == 0);  // above U+10FFFF
  CHECK(first_invalid_utf8("\x80") == 0);
}

}  // namespace osdn
