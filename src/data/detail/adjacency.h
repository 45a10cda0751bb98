// Which two characters stand side by side inside some piece of a vocabulary. Between two that never do, a
// text may be cut before it is encoded: no piece, and so no merge or path through the cut, can span it. A
// space and U+2581 are one character here, as they are to sentencepiece.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <unordered_set>

namespace osdn::data::detail {

class Adjacency {
 public:
  void add_piece(std::string_view piece);
  bool joined(char32_t left, char32_t right) const;

 private:
  std::bitset<128 * 128> ascii_;
  std::unordered_set<uint64_t> others_;
};

}  // namespace osdn::data::detail
