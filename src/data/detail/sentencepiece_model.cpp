#include "data/detail/sentencepiece_model.h"

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
    if (reader.field == 2) model->identity_normalization = reader.text.empty();
    if (reader.field == 3) model->add_dummy_prefix = reader.number != 0;
    if (reader.field == 4) model->remove_extra_whitespaces = reader.number != 0;
    if (reader.field == 5) model->escape_whitespaces = reader.number != 0;
  }
  return !reader.failed;
}

}  // namespace

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
