// UTF-8 as the Unicode standard defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace osdn {

/// Bytes of the well-formed character at the start of `text` (not empty); 0 when it is malformed or cut off.
size_t utf8_length(std::string_view text);

/// Offset of the first byte that does not belong to well-formed UTF-8; npos when all of it is valid.
size_t first_invalid_utf8(std::string_view text);

/// The character at the start of `text`, which must be valid; its length goes to `length`.
char32_t utf8_code_point(std::string_view text, size_t* length);

/// The largest number of bytes up to `limit`, but at least one character, that ends valid `text` at a whole
/// one.
size_t whole_characters(std::string_view text, size_t limit);

}  // namespace osdn
