// Turns the bytes of decoded tokens into printable text: never prints half a UTF-8 character, holds back what
// may become a stop string, ends at one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace osdn::apps {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Adds the bytes of one token; returns what may be printed now.
  std::string push(std::string_view bytes);
  /// What was held back; call once at the end.
  std::string finish();
  bool stopped() const { return stopped_; }
  /// Everything returned so far.
  const std::string& text() const { return printed_; }

 private:
  std::string take(size_t size);

  std::vector<std::string> stops_;
  std::string held_;
  std::string printed_;
  bool stopped_ = false;
};

}  // namespace osdn::apps
