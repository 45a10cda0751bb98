#include "config/detail/utf8.h"

#include <cstdint>

namespace osdn::config::detail {

size_t first_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    size_t length = 0;
    uint32_t smallest = 0;
    if ((lead & 0xE0) == 0xC0) {
      length = 2, smallest = 0x80;
    } else if ((lead & 0xF0) == 0xE0) {
      length = 3, smallest = 0x800;
    } else if ((lead & 0xF8) == 0xF0) {
      length = 4, smallest = 0x10000;
    }
    if (length == 0 || i + length > text.size()) return i;
    uint32_t code = lead & (0xFFu >> (length + 1));
    for (size_t j = 1; j < length; ++j) {
      const auto next = static_cast<unsigned char>(text[i + j]);
      if ((next & 0xC0) != 0x80) return i;
      code = code << 6 | (next & 0x3F);
    }
    if (code < smallest || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return i;
    i += length;
  }
  return std::string_view::npos;
}

}  // namespace osdn::config::detail
