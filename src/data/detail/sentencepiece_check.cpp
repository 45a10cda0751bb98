#include "data/detail/sentencepiece_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <unordered_map>
#include <utility>
#include <vector>

namespace osdn::data::detail {
namespace sentencepiece_check_detail {

constexpr size_t kMaxPieceBytes = 4096;
constexpr size_t kMaxNestedSymbols = 64;      // the library's array of matches
constexpr int kMaxMatches = 32;               // of the character map: likewise
constexpr size_t kMaxReplacementBytes = 256;  // Unicode's longest is 33
constexpr int64_t kMaxTrieNodes = 1 << 22;  // counted along every way from the root; Unicode has some 20,000

enum WireType : unsigned { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct WireField {
  uint64_t number = 0;  // which field
  unsigned type = kVarint;
  uint64_t integer = 0;    // of a varint or a fixed field
  std::string_view bytes;  // of a length-delimited one
};

/// Calls `visit` with every field of a message, which returns a fault or nothing.
std::string walk(std::string_view message, const std::function<std::string(const WireField&)>& visit) {
  size_t position = 0;
  const auto varint = [&](uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && position < message.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message[position++]);
      *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  };
  const char* damaged = "its structure is damaged";
  while (position < message.size()) {
    uint64_t key = 0;
    if (!varint(&key) || key >> 3 == 0) return damaged;
    WireField field;
    field.number = key >> 3;
    field.type = static_cast<unsigned>(key & 7);
    uint64_t size = 0;
    if (field.type == kVarint) {
      if (!varint(&field.integer)) return damaged;
    } else if (field.type == kBytes) {
      if (!varint(&size)) return damaged;
    } else if (field.type == kFixed32 || field.type == kFixed64) {
      size = field.type == kFixed32 ? 4 : 8;
    } else {
      return damaged;
    }
    if (size > message.size() - position) return damaged;
    field.bytes = message.substr(position, size);
    position += size;
    if (field.type == kFixed32 || field.type == kFixed64)
      std::memcpy(&field.integer, field.bytes.data(), size);
    if (std::string fault = visit(field); !fault.empty()) return fault;
  }
  return {};
}

/// A known field of another wire type than its own: to the library it is unknown, to another reader it is
/// not.
bool is_mistyped(const WireField& field, std::initializer_list<std::pair<uint64_t, unsigned>> known) {
  return std::any_of(known.begin(), known.end(), [&](const auto& expected) {
    return expected.first == field.number && expected.second != field.type;
  });
}

constexpr const char* kMistyped = "a field is of another type than its own";

/// A double array of darts-clone. A node is the place `base` whose children are at base ^ byte.
class TrieCheck {
 public:
  TrieCheck(std::string_view units, std::string_view replacements)
      : units_(units), replacements_(replacements) {}

  std::string run() {
    if (num_units() == 0) return "its character map is empty";
    open(offset(unit(0)));
    while (fault_.empty() && !stack_.empty()) {
      Visit& top = stack_.back();
      if (top.byte == 256) {
        close();
      } else {
        follow(top.base, top.byte++);
      }
    }
    return fault_;
  }

 private:
  struct Visit {
    uint64_t base;
    uint32_t byte;  // the child that comes next
  };
  struct Node {
    bool done = false;
    int matches = 0;    // at most, along a way down from here
    int64_t nodes = 1;  // along all ways down
  };

  size_t num_units() const { return units_.size() / sizeof(uint32_t); }
  uint32_t unit(uint64_t index) const {
    uint32_t value = 0;
    std::memcpy(&value, units_.data() + index * sizeof(value), sizeof(value));
    return value;
  }
  static uint64_t offset(uint32_t unit) {
    return static_cast<uint64_t>(unit >> 10) << ((unit & (1U << 9)) >> 6);
  }

  void open(uint64_t base) {
    // Any byte of a text may be tried at a node, so all 256 places must be there.
    if ((base | 0xFF) >= num_units()) {
      fault_ = "its character map leads outside of its array";
      return;
    }
    nodes_[base] = {};
    stack_.push_back({base, 0});
  }

  void follow(uint64_t base, uint32_t byte) {
    const uint64_t index = base ^ byte;
    if ((unit(index) & (1U << 31 | 0xFFU)) != byte) return;  // no child
    const uint64_t below = index ^ offset(unit(index));
    const auto known = nodes_.find(below);
    if (known == nodes_.end()) {
      --stack_.back().byte;  // come back to this child when the node below is done
      open(below);
      return;
    }
    if (!known->second.done) {
      fault_ = "its character map meets itself";
      return;
    }
    const bool is_match = (unit(index) >> 8 & 1) != 0;
    if (is_match) check_replacement(unit(below) & ~(1U << 31));
    Node& node = nodes_[base];
    node.matches = std::max(node.matches, known->second.matches + (is_match ? 1 : 0));
    node.nodes = std::min(kMaxTrieNodes + 1, node.nodes + known->second.nodes);
    if (node.matches > kMaxMatches)
      fault_ = fmt::format("its character map yields more than {} matches", kMaxMatches);
    if (node.nodes > kMaxTrieNodes) fault_ = "its character map is endless";
  }

  void close() {
    nodes_[stack_.back().base].done = true;
    stack_.pop_back();
  }

  void check_replacement(uint64_t start) {
    const size_t end =
        start < replacements_.size() ? replacements_.find('\0', start) : std::string_view::npos;
    if (end == std::string_view::npos)
      fault_ = "a replacement of its character map lies outside of it";
    else if (end - start > kMaxReplacementBytes)
      fault_ = fmt::format("its character map replaces by {} bytes", end - start);
  }

  std::string_view units_;
  std::string_view replacements_;
  std::unordered_map<uint64_t, Node> nodes_;  // by base
  std::vector<Visit> stack_;
  std::string fault_;
};

/// The map: size of the trie, the trie, the replacements, each ended by NUL.
std::string character_map_fault(std::string_view map) {
  if (map.empty()) return {};
  uint32_t size = 0;
  if (map.size() > sizeof(size)) std::memcpy(&size, map.data(), sizeof(size));
  if (map.size() <= sizeof(size) || size > map.size() - sizeof(size)) return "its character map is cut off";
  return TrieCheck(map.substr(sizeof(size), size), map.substr(sizeof(size) + size)).run();
}

std::string normalizer_fault(std::string_view spec) {
  constexpr uint64_t kCharacterMap = 2;
  return walk(spec, [&](const WireField& field) -> std::string {
    if (is_mistyped(field, {{kCharacterMap, kBytes}, {3, kVarint}, {4, kVarint}, {5, kVarint}}))
      return kMistyped;
    return field.number == kCharacterMap ? character_map_fault(field.bytes) : std::string();
  });
}

std::string trainer_fault(std::string_view spec) {
  constexpr uint64_t kModelType = 3;
  return walk(spec, [&](const WireField& field) -> std::string {
    if (is_mistyped(field, {{kModelType, kVarint}, {24, kVarint}, {35, kVarint}})) return kMistyped;
    if (field.number == kModelType && (field.integer < 1 || field.integer > 4))
      return fmt::format("its model type is {}", field.integer);
    return {};
  });
}

struct CheckedPiece {
  std::string_view text;
  uint64_t type = 1;
};

std::string piece_fault(std::string_view message, CheckedPiece* piece) {
  const std::string fault = walk(message, [&](const WireField& field) -> std::string {
    if (is_mistyped(field, {{1, kBytes}, {2, kFixed32}, {3, kVarint}})) return kMistyped;
    if (field.number == 1) piece->text = field.bytes;
    if (field.number == 2) {
      const auto bits = static_cast<uint32_t>(field.integer);
      float score = 0;
      std::memcpy(&score, &bits, sizeof(score));
      if (!std::isfinite(score)) return "the score of a piece is not finite";
    }
    if (field.number == 3) piece->type = field.integer;
    return {};
  });
  if (!fault.empty()) return fault;
  if (piece->text.empty()) return "a piece is empty";
  if (piece->text.size() > kMaxPieceBytes) return fmt::format("a piece has {} bytes", piece->text.size());
  if (piece->text.find('\0') != std::string_view::npos) return "a piece holds NUL";
  if (piece->type < 1 || piece->type > 6) return fmt::format("the type of a piece is {}", piece->type);
  return {};
}

/// The longest row of symbols of which each begins the next.
size_t nesting(std::vector<std::string_view> symbols) {
  std::sort(symbols.begin(), symbols.end());
  std::vector<std::string_view> open;
  size_t most = 0;
  for (const std::string_view symbol : symbols) {
    while (!open.empty() && symbol.substr(0, open.back().size()) != open.back()) open.pop_back();
    open.push_back(symbol);
    most = std::max(most, open.size());
  }
  return most;
}

}  // namespace sentencepiece_check_detail

std::string sentencepiece_fault(std::string_view model_bytes) {
  namespace check = sentencepiece_check_detail;
  enum : uint64_t { kPiece = 1, kTrainer = 2, kNormalizer = 3, kSelfTest = 4, kDenormalizer = 5 };
  constexpr uint64_t kUserDefined = 4;
  std::vector<std::string_view> symbols;
  size_t num_pieces = 0;
  const std::string fault = check::walk(model_bytes, [&](const check::WireField& field) -> std::string {
    if (check::is_mistyped(field, {{kPiece, check::kBytes},
                                   {kTrainer, check::kBytes},
                                   {kNormalizer, check::kBytes},
                                   {kSelfTest, check::kBytes},
                                   {kDenormalizer, check::kBytes}}))
      return check::kMistyped;
    if (field.number == kTrainer) return check::trainer_fault(field.bytes);
    if (field.number == kNormalizer || field.number == kDenormalizer)
      return check::normalizer_fault(field.bytes);
    if (field.number != kPiece) return {};
    check::CheckedPiece piece;
    if (std::string reason = check::piece_fault(field.bytes, &piece); !reason.empty())
      return fmt::format("{} (piece {})", reason, num_pieces);
    if (piece.type == kUserDefined) symbols.push_back(piece.text);
    ++num_pieces;
    return {};
  });
  if (!fault.empty()) return fault;
  if (num_pieces == 0) return "it has no pieces";
  if (const size_t most = check::nesting(std::move(symbols)); most > check::kMaxNestedSymbols)
    return fmt::format("{} of its user-defined symbols begin each other", most);
  return {};
}

}  // namespace osdn::data::detail
