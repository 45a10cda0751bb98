// Validity of UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
#pragma once

#include <string_view>

namespace osdn::config::detail {

/// Position of the first byte that does not belong to valid UTF-8, or npos.
size_t first_invalid_utf8(std::string_view text);

}  // namespace osdn::config::detail
