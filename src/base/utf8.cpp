#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace osdn {

size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  // The second byte's range depends on the lead: that is what excludes overlong forms, surrogates and >
  // U+10FFFF.
  size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  if (text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  return length;
}

size_t first_invalid_utf8(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    // Eight ASCII bytes at a time: most text is ASCII.
    if (position + 8 <= text.size()) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + position, 8);
      if ((word & 0x8080808080808080ULL) == 0) {
        position += 8;
        continue;
      }
    }
    const size_t length = utf8_length(text.substr(position));
    if (length == 0) return position;
    position += length;
  }
  return std::string_view::npos;
}

char32_t utf8_code_point(std::string_view text, size_t* length) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    *length = 1;
    return lead;
  }
  if (lead < 0xE0) {
    *length = 2;
    return (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  }
  if (lead < 0xF0) {
    *length = 3;
    return (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  }
  *length = 4;
  return (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

size_t whole_characters(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text.size();
  size_t size = limit;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  return size > 0 ? size : utf8_length(text);
}

}  // namespace osdn
