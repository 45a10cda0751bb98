// What a serialised sentencepiece model says about itself. The library hides its protobuf, but where a text
// may be cut and whether a model is lossless depends on fields that its interface does not show.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace osdn::data::detail {

enum class ModelType { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct Piece {
  std::string text;  // a space is written as U+2581
  PieceType type = PieceType::kNormal;
};

struct SentencepieceModel {
  std::vector<Piece> pieces;  // by id
  ModelType type = ModelType::kUnigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  bool identity_normalization = true;  // no character map
  /// Of a character map: text on both sides of a space is normalised independently, and the space stays one.
  bool normalization_keeps_words_apart = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

/// Bytes of a model that is the same but for its dummy prefix: whether the library puts a space before what
/// it encodes.
std::string with_dummy_prefix(std::string_view model_bytes, bool dummy_prefix);

/// Throws DataError when the bytes are no such message; `origin` names the file in it.
SentencepieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& origin);

}  // namespace osdn::data::detail
