// Turns the bytes of decoded tokens into printable text: always valid UTF-8, never half a character; holds
// back what may become a stop string, ends at one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace osdn::apps {

class TextStream {
 public:
  /// `stops`: valid UTF-8, none empty.
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Adds the bytes of one token; returns what may be printed now. Every maximal part that belongs to no
  /// character becomes one U+FFFD.
  std::string push(std::string_view bytes);
  /// What was held back, the beginning of a character as U+FFFD; call once at the end.
  std::string finish();
  bool stopped() const { return stopped_; }
  /// Everything returned so far.
  const std::string& text() const { return printed_; }

 private:
  void take_characters();
  std::string take(size_t size);

  std::vector<std::string> stops_;
  std::string bytes_;  // the beginning of a character whose rest has not come
  std::string held_;   // whole characters, not printed yet
  std::string printed_;
  bool stopped_ = false;
};

}  // namespace osdn::apps
