// Where a text may be cut before it is encoded, such that the ids of the pieces, one after the other, are the
// ids of the whole text (docs/formats/shard.md, "Long documents").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/detail/adjacency.h"
#include "data/detail/sentencepiece_model.h"

namespace osdn::data::detail {

/// Of a text to be encoded by itself. Two neighbours may be apart by a space that the encoder puts back.
struct TextPart {
  std::string_view text;
  bool first = true;  // of its text
};

class Division {
 public:
  enum class Kind {
    kWords,   // between any two characters that no piece holds side by side
    kSpaces,  // at a single space between two visible ASCII characters, which is then left out
    kNever,
  };
  static constexpr size_t kPartBytes = 64 << 10;

  Division() = default;
  explicit Division(const SentencepieceModel& model);

  Kind kind() const { return kind_; }
  /// Whether any valid UTF-8 comes back from its ids exactly.
  bool lossless() const { return lossless_; }
  /// What about the texts of this model does not come back exactly; empty when everything does.
  const std::string& losses() const { return losses_; }

  /// Parts of about 64 KB as far as there are places to cut; a text without any is one part. Of kWords the
  /// parts join to the text. Valid UTF-8 only.
  std::vector<TextPart> parts(std::string_view text) const;
  /// kWords: bytes up to the next cut that is also a good one: before a space, after a newline, or anywhere
  /// once the segment is long. Never empty.
  size_t segment_size(std::string_view text) const;

 private:
  bool is_word_cut(char32_t left, char32_t right) const;
  size_t next_word_cut(std::string_view text, size_t from) const;
  std::vector<TextPart> parts_at_spaces(std::string_view text) const;

  Kind kind_ = Kind::kNever;
  bool lossless_ = false;
  std::string losses_;
  Adjacency adjacency_;
};

}  // namespace osdn::data::detail
