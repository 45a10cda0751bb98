// Text to token ids and back through sentencepiece. Own models are lossless: any valid UTF-8 round-trips.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace osdn::data {
namespace detail {
struct TextPart;
}

class Tokenizer {
 public:
  /// Throws DataError when the file is no sentencepiece model, EnvironmentError when it can't be read.
  static Tokenizer load(const std::string& path);
  /// From the serialised model itself.
  static Tokenizer from_model(std::string model_bytes);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Valid UTF-8 only (UserError otherwise). No bos or eos; control pieces written in the text stay text.
  /// Long texts are encoded in pieces cut where that cannot change the result. Thread-safe.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Encoding in parts, for one text on several threads: the ids of the parts of a text, one after the other,
  /// are those of the text. `text` must be valid UTF-8 and outlive the parts. A part of more than 8 MB of a
  /// foreign tokenizer that cannot be cut in it throws UserError.
  std::vector<detail::TextPart> parts(std::string_view text) const;
  void encode_part(const detail::TextPart& part, std::vector<int32_t>* ids) const;
  /// Control ids give nothing. Throws UserError for an id outside the vocabulary.
  std::string decode(const std::vector<int32_t>& ids) const;
  /// The bytes that one token contributes in the middle of a text (UTF-8 may be incomplete: byte pieces).
  std::string piece_bytes(int32_t id) const;

  int64_t vocab_size() const;
  int32_t bos_id() const;  // -1 when the model has none
  int32_t eos_id() const;
  int32_t unknown_id() const;
  int32_t pad_id() const;
  /// Whether every valid UTF-8 text comes back exactly: true of the models that train_tokenizer makes.
  bool lossless() const;
  /// What texts lose otherwise, for messages; empty when lossless.
  const std::string& losses() const;
  /// Whether some text encodes to bos, eos or pad, which a document boundary must not: true of models that
  /// define those pieces as user symbols.
  bool text_reaches_control_ids() const;
  /// Digest of the serialised model, as stored in shards.
  std::string digest() const;
  const std::string& model_bytes() const;

 private:
  Tokenizer();
  static Tokenizer parse(std::string model_bytes, const std::string& origin);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace osdn::data
