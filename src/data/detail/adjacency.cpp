#include "data/detail/adjacency.h"

#include "base/utf8.h"

namespace osdn::data::detail {
namespace {
char32_t with_space(char32_t character) { return character == 0x2581 ? U' ' : character; }
uint64_t pair_key(char32_t left, char32_t right) { return static_cast<uint64_t>(left) << 32 | right; }
}  // namespace

void Adjacency::add_piece(std::string_view piece) {
  char32_t left = 0;
  bool first = true;
  while (!piece.empty() && utf8_length(piece) != 0) {
    size_t length = 0;
    const char32_t right = with_space(utf8_code_point(piece, &length));
    piece.remove_prefix(length);
    if (!first) {
      if (left < 128 && right < 128) {
        ascii_.set(left * 128 + right);
      } else {
        others_.insert(pair_key(left, right));
      }
    }
    left = right;
    first = false;
  }
}

bool Adjacency::joined(char32_t left, char32_t right) const {
  left = with_space(left);
  right = with_space(right);
  if (left < 128 && right < 128) return ascii_.test(left * 128 + right);
  return others_.count(pair_key(left, right)) != 0;
}

}  // namespace osdn::data::detail
