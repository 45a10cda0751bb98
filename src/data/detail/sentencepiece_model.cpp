#include "data/detail/sentencepiece_model.h"

#include <cstring>

#include "base/error.h"

namespace osdn::data::detail {
namespace {

/// Walks the fields of one protobuf message. Sets `failed` instead of throwing: only the caller knows the
/// file.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  /// False at the end or on damage.
  bool next() {
    if (failed || position_ == bytes_.size()) return false;
    const uint64_t key = varint();
    field = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0:
        number = varint();
        break;
      case 1:
        skip(8);
        break;
      case 2: {
        const uint64_t size = varint();
        if (size > bytes_.size() - position_) failed = true;
        if (failed) break;
        text = bytes_.substr(position_, size);
        position_ += size;
        break;
      }
      case 5:
        skip(4);
        break;
      default:
        failed = true;
    }
    if (field == 0) failed = true;
    return !failed;
  }

  size_t position() const { return position_; }

  int field = 0;
  uint64_t number = 0;    // of a varint field
  std::string_view text;  // of a length-delimited field
  bool failed = false;

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (position_ == bytes_.size()) break;
      const auto byte = static_cast<unsigned char>(bytes_[position_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    failed = true;
    return 0;
  }
  void skip(size_t size) {
    if (size > bytes_.size() - position_) failed = true;
    position_ += failed ? 0 : size;
  }

  std::string_view bytes_;
  size_t position_ = 0;
};

/// The compiled character map of a normalizer: the size of a trie, the trie as a double array of units (the
/// format of darts-clone), then the replacements, each ended by NUL.
class CharacterMap {
 public:
  explicit CharacterMap(std::string_view bytes) {
    uint32_t size = 0;
    if (bytes.size() < sizeof(size)) return;
    std::memcpy(&size, bytes.data(), sizeof(size));
    if (size > bytes.size() - sizeof(size)) return;
    trie_ = bytes.substr(sizeof(size), size);
    replacements_ = bytes.substr(sizeof(size) + size);
  }

  bool keeps_words_apart() {
    apart_ = num_units() > 0;
    if (apart_) visit(offset(unit(0)));
    return apart_;
  }

 private:
  // A trie of this many nodes or this depth is none.
  static constexpr int64_t kMaxNodes = 1 << 20;
  static constexpr size_t kMaxKeyBytes = 256;

  size_t num_units() const { return trie_.size() / sizeof(uint32_t); }
  uint32_t unit(size_t index) const {
    uint32_t value = 0;
    std::memcpy(&value, trie_.data() + index * sizeof(value), sizeof(value));
    return value;
  }
  static size_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); }

  void visit(size_t node) {
    if (++nodes_ > kMaxNodes || key_.size() > kMaxKeyBytes) apart_ = false;
    for (uint32_t byte = 1; byte < 256 && apart_; ++byte) {
      const size_t child = node ^ byte;
      if (child >= num_units() || (unit(child) & (1U << 31 | 0xFFU)) != byte) continue;
      key_ += static_cast<char>(byte);
      const size_t below = child ^ offset(unit(child));
      if ((unit(child) >> 8 & 1) != 0) look_at_key(below);
      visit(below);
      key_.pop_back();
    }
  }

  void look_at_key(size_t leaf) {
    if (leaf >= num_units()) {
      apart_ = false;
      return;
    }
    const size_t start = unit(leaf) & ~(1U << 31);
    if (start >= replacements_.size()) {
      apart_ = false;
      return;
    }
    const std::string_view rest = replacements_.substr(start);
    const std::string_view replacement = rest.substr(0, rest.find('\0'));
    // A replacement that spans a space, replaces it, or adds one to a visible character would reach across a
    // cut.
    if (key_.find(' ') != std::string::npos && (key_ != " " || replacement != " ")) apart_ = false;
    const bool visible =
        (key_.back() > ' ' && key_.back() < '\x7F') || (key_.front() > ' ' && key_.front() < '\x7F');
    if (visible && (replacement.empty() || replacement.front() == ' ' || replacement.back() == ' '))
      apart_ = false;
  }

  std::string_view trie_;
  std::string_view replacements_;
  std::string key_;
  int64_t nodes_ = 0;
  bool apart_ = false;
};

bool read_piece(std::string_view bytes, Piece* piece) {
  WireReader reader(bytes);
  while (reader.next()) {
    if (reader.field == 1) piece->text = reader.text;
    if (reader.field == 3) piece->type = static_cast<PieceType>(reader.number);
  }
  return !reader.failed;
}

bool read_trainer_spec(std::string_view bytes, SentencepieceModel* model) {
  WireReader reader(bytes);
  while (reader.next()) {
    if (reader.field == 3) model->type = static_cast<ModelType>(reader.number);
    if (reader.field == 24) model->treat_whitespace_as_suffix = reader.number != 0;
    if (reader.field == 35) model->byte_fallback = reader.number != 0;
  }
  return !reader.failed;
}

bool read_normalizer_spec(std::string_view bytes, SentencepieceModel* model) {
  WireReader reader(bytes);
  while (reader.next()) {
    if (reader.field == 2) {
      model->identity_normalization = reader.text.empty();
      model->normalization_keeps_words_apart = CharacterMap(reader.text).keeps_words_apart();
    }
    if (reader.field == 3) model->add_dummy_prefix = reader.number != 0;
    if (reader.field == 4) model->remove_extra_whitespaces = reader.number != 0;
    if (reader.field == 5) model->escape_whitespaces = reader.number != 0;
  }
  return !reader.failed;
}

}  // namespace

std::string with_dummy_prefix(std::string_view model_bytes, bool dummy_prefix) {
  std::string bytes;
  WireReader reader(model_bytes);
  for (size_t begin = 0; reader.next(); begin = reader.position())
    if (reader.field != 4)  // samples of what the model as it was does
      bytes += model_bytes.substr(begin, reader.position() - begin);
  // A message that occurs twice is merged field by field, and the later value counts: field 3, the
  // normalizer, of two bytes: its field 3, the dummy prefix.
  bytes += "\x1A\x02\x18";
  bytes += dummy_prefix ? '\x01' : '\0';
  return bytes;
}

SentencepieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& origin) {
  SentencepieceModel model;
  WireReader reader(bytes);
  bool intact = true;
  while (intact && reader.next()) {
    if (reader.field == 1) {
      intact = read_piece(reader.text, &model.pieces.emplace_back());
    } else if (reader.field == 2) {
      intact = read_trainer_spec(reader.text, &model);
    } else if (reader.field == 3) {
      intact = read_normalizer_spec(reader.text, &model);
    }
  }
  if (!intact || reader.failed || model.pieces.empty())
    throw DataError(
        "{}: expected a sentencepiece model, found {} bytes of something else or a damaged one (make a new "
        "one with `osdn tokenizer train`, or copy it again)",
        origin, bytes.size());
  return model;
}

}  // namespace osdn::data::detail
