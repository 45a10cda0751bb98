#include "apps/text_stream.h"

#include <algorithm>

namespace osdn::apps {
namespace {

/// Bytes at the end of `text` that begin a character whose rest has not come.
size_t incomplete_tail(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

/// Longest end of `text` that is a proper beginning of `stop`.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size)
    if (text.substr(text.size() - size) == stop.substr(0, size)) return size;
  return 0;
}

}  // namespace

std::string TextStream::take(size_t size) {
  const std::string ready = held_.substr(0, size);
  held_.erase(0, size);
  printed_ += ready;
  return ready;
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return {};
  held_ += bytes;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_)
    if (!stop.empty()) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    held_.resize(end);
    return take(end);
  }
  size_t keep = incomplete_tail(held_);
  for (const std::string& stop : stops_)
    if (!stop.empty()) keep = std::max(keep, overlap(held_, stop));
  return take(held_.size() - keep);
}

std::string TextStream::finish() { return take(held_.size()); }

}  // namespace osdn::apps
