// The documents that an evaluation reads: of token shards, or of text files as `osdn prepare` reads them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "data/tokenizer.h"
#include "eval/perplexity.h"

namespace osdn::eval {

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  /// False at the end.
  virtual bool next(EvalDocument* document) = 0;
  /// Work in all and done so far, in `unit` (tokens, bytes).
  virtual const char* unit() const = 0;
  virtual int64_t total_units() const = 0;
  virtual int64_t done_units() const = 0;
  /// Files in reading order.
  virtual std::vector<std::string> paths() const = 0;
  /// In which form the text is counted in bytes and words, a sentence for the report.
  virtual std::string text_form() const = 0;
  /// Documents whose text does not come back from their tokens exactly: then the model predicts a changed
  /// text. Absent where that is unknown (shards of a tokenizer that is not lossless, or without one).
  virtual std::optional<int64_t> num_changed() const = 0;
  /// Records left out as broken (on_error: skip).
  virtual int64_t num_skipped() const { return 0; }
};

/// Documents of shards, in order. `tokenizer`, for words and bos, may be null; it must be the shards' own
/// (UserError otherwise). `vocab_size`: of the model.
std::unique_ptr<DocumentSource> open_shards(const std::vector<std::string>& globs,
                                            const data::Tokenizer* tokenizer, int64_t vocab_size);

/// Documents of text files: `settings.input` with format, text_key and on_error; bos in front of each, eos
/// behind where settings.add_eos says so. Documents without visible text are left out, as prepare does.
std::unique_ptr<DocumentSource> open_texts(const config::Prepare& settings, const data::Tokenizer& tokenizer);

/// Maximal runs of characters that are not white space (Unicode's White_Space property). `text`: valid UTF-8.
int64_t count_words(std::string_view text);

}  // namespace osdn::eval
