#include "apps/text_stream.h"

#include <algorithm>

namespace osdn::apps {
namespace text_stream_detail {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Head {
  size_t size = 0;  // bytes of the character, or of the part that can't belong to one
  bool valid = false;
  bool complete = true;  // false: the text ends within a character that is well-formed so far
};

/// The first character of `text` (not empty), by the Unicode standard's table of well-formed sequences.
Head first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {.size = 1, .valid = true};
  const size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                        : lead >= 0xE0 && lead <= 0xEF ? 3
                        : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                       : 0;
  if (length == 0) return {.size = 1};
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {.size = i, .complete = false};
    // The second byte's range depends on the lead: no overlong forms, no surrogates, nothing above U+10FFFF.
    const unsigned char low = i > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = i > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(i) < low || byte(i) > high) return {.size = i};
  }
  return {.size = length, .valid = true};
}

/// Longest end of `text` that is a proper beginning of `stop`.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size)
    if (text.substr(text.size() - size) == stop.substr(0, size)) return size;
  return 0;
}

}  // namespace text_stream_detail

void TextStream::take_characters() {
  std::string_view rest = bytes_;
  while (!rest.empty()) {
    const text_stream_detail::Head head = text_stream_detail::first_character(rest);
    if (!head.complete) break;
    held_ += head.valid ? rest.substr(0, head.size) : text_stream_detail::kReplacement;
    rest.remove_prefix(head.size);
  }
  bytes_.erase(0, bytes_.size() - rest.size());
}

std::string TextStream::take(size_t size) {
  const std::string ready = held_.substr(0, size);
  held_.erase(0, size);
  printed_ += ready;
  return ready;
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return {};
  bytes_ += bytes;
  take_characters();
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    held_.resize(end);
    bytes_.clear();
    return take(end);
  }
  size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, text_stream_detail::overlap(held_, stop));
  return take(held_.size() - keep);
}

std::string TextStream::finish() {
  if (!bytes_.empty()) held_ += text_stream_detail::kReplacement;
  bytes_.clear();
  return take(held_.size());
}

}  // namespace osdn::apps
