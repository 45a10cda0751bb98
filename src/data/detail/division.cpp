#include "data/detail/division.h"

#include <algorithm>

#include "base/utf8.h"

namespace osdn::data::detail {
namespace division_detail {

constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";  // U+2581, sentencepiece's space
constexpr size_t kLongSegmentBytes =
    64;  // from here on a segment ends at any safe place, not only at whitespace

/// What the pieces of a model allow.
struct Pieces {
  bool space = false;         // a space by itself is a piece
  bool inner_space = false;   // some piece goes on after a word with a space
  bool symbol_space = false;  // some user-defined symbol holds a space
  bool unused = false;
  bool all_bytes = false;
};

Pieces look_at_pieces(const SentencepieceModel& model) {
  Pieces found;
  int64_t bytes = 0;
  for (const Piece& piece : model.pieces) {
    if (piece.type == PieceType::kByte) ++bytes;
    if (piece.type == PieceType::kUnused) found.unused = true;
    if (piece.type == PieceType::kControl || piece.type == PieceType::kByte ||
        piece.type == PieceType::kUnknown)
      continue;
    found.space = found.space || piece.text == kSpaceMarker;
    bool word = false;
    for (size_t i = 0; i < piece.text.size(); ++i) {
      const bool marker = piece.text.compare(i, kSpaceMarker.size(), kSpaceMarker) == 0;
      const bool space = marker || piece.text[i] == ' ';
      if (space && piece.type == PieceType::kUserDefined) found.symbol_space = true;
      if (space && word) found.inner_space = true;
      word = word || !space;
      if (marker) i += kSpaceMarker.size() - 1;
    }
  }
  found.all_bytes = model.byte_fallback && bytes == 256;
  return found;
}

bool is_visible_ascii(char character) { return character > ' ' && character < '\x7F'; }

bool is_boundary(std::string_view text, size_t position) {
  return position == text.size() || (static_cast<unsigned char>(text[position]) & 0xC0) != 0x80;
}

/// The character that ends before `position`, which is not 0.
char32_t character_before(std::string_view text, size_t position) {
  size_t start = position - 1;
  while (!is_boundary(text, start)) --start;
  size_t length = 0;
  return utf8_code_point(text.substr(start), &length);
}

}  // namespace division_detail

Division::Division(const SentencepieceModel& model) {
  const division_detail::Pieces pieces = division_detail::look_at_pieces(model);
  const bool bpe = model.type == ModelType::kBpe;
  const bool known = bpe || model.type == ModelType::kUnigram;
  // An unused piece is taken apart as it was put together the last time anywhere in the text.
  const bool local =
      known && model.escape_whitespaces && !model.treat_whitespace_as_suffix && !(bpe && pieces.unused);
  const bool exact = model.identity_normalization && !model.remove_extra_whitespaces;
  // Without byte pieces the library joins neighbouring unknown characters into one id, also across a cut.
  const bool words = local && exact && pieces.all_bytes;
  lossless_ = words && !model.add_dummy_prefix && pieces.space;
  // The library adds a unigram path's scores up in float32 from the start of the text, so its choice among
  // near ties depends on all that came before. Own models are defined word by word; with foreign ones only
  // what would be too long for the library is cut.
  if (words && (lossless_ || bpe)) {
    kind_ = Kind::kWords;
  } else if (local && pieces.space && !pieces.inner_space && !pieces.symbol_space &&
             (model.identity_normalization || model.normalization_keeps_words_apart)) {
    kind_ = Kind::kSpaces;
  }
  const auto lose = [&](bool condition, const char* what) {
    if (condition) losses_ += (losses_.empty() ? "" : ", ") + std::string(what);
  };
  lose(!model.identity_normalization, "characters are normalised");
  lose(model.remove_extra_whitespaces, "leading, trailing and repeated spaces are removed");
  lose(!pieces.all_bytes, "unknown characters are lost");
  lose(!lossless_, "a written U+2581 becomes a space");
  if (kind_ == Kind::kWords)
    for (const Piece& piece : model.pieces)
      if (piece.type != PieceType::kControl && piece.type != PieceType::kByte &&
          piece.type != PieceType::kUnknown)
        adjacency_.add_piece(piece.text);
}

/// Cuts whose place does not depend on how long the segment is.
bool Division::is_word_cut(char32_t left, char32_t right) const {
  return ((right == U' ' && left != U' ') || left == U'\n') && !adjacency_.joined(left, right);
}

size_t Division::segment_size(std::string_view text) const {
  size_t position = 0;
  char32_t left = utf8_code_point(text, &position);
  while (position < text.size()) {
    size_t length = 0;
    const char32_t right = utf8_code_point(text.substr(position), &length);
    if (is_word_cut(left, right)) return position;
    if (position >= division_detail::kLongSegmentBytes && !adjacency_.joined(left, right)) return position;
    left = right;
    position += length;
  }
  return text.size();
}

size_t Division::next_word_cut(std::string_view text, size_t from) const {
  size_t position = from;
  while (!division_detail::is_boundary(text, position)) ++position;
  char32_t left = division_detail::character_before(text, position);
  while (position < text.size()) {
    size_t length = 0;
    const char32_t right = utf8_code_point(text.substr(position), &length);
    if (is_word_cut(left, right)) return position;
    left = right;
    position += length;
  }
  return text.size();
}

std::vector<TextPart> Division::parts_at_spaces(std::string_view text) const {
  const auto is_cut = [&](size_t i) {
    return i > 0 && i + 1 < text.size() && text[i] == ' ' && division_detail::is_visible_ascii(text[i - 1]) &&
           division_detail::is_visible_ascii(text[i + 1]);
  };
  std::vector<TextPart> parts;
  size_t begin = 0;
  while (text.size() - begin > kPartBytes) {
    size_t cut = begin + kPartBytes;
    while (cut > begin && !is_cut(cut)) --cut;
    if (cut == begin) {
      cut += kPartBytes;
      while (cut < text.size() && !is_cut(cut)) ++cut;
    }
    if (cut == text.size()) break;
    parts.push_back({.text = text.substr(begin, cut - begin), .first = begin == 0});
    begin = cut + 1;
  }
  parts.push_back({.text = text.substr(begin), .first = begin == 0});
  return parts;
}

std::vector<TextPart> Division::parts(std::string_view text) const {
  if (kind_ == Kind::kSpaces) return parts_at_spaces(text);
  std::vector<TextPart> parts;
  size_t begin = 0;
  while (kind_ == Kind::kWords && text.size() - begin > kPartBytes) {
    const size_t cut = next_word_cut(text, begin + kPartBytes);
    parts.push_back({.text = text.substr(begin, cut - begin), .first = begin == 0});
    begin = cut;
  }
  if (begin < text.size()) parts.push_back({.text = text.substr(begin), .first = begin == 0});
  return parts;
}

}  // namespace osdn::data::detail
