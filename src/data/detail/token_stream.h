// Shards of one source read as one long row of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/shard.h"

namespace osdn::data::detail {

class TokenStream {
 public:
  /// Opens every shard that the globs match, in list order, each glob's matches sorted bytewise. `key` names
  /// the configuration key in messages. Throws UserError, DataError or EnvironmentError.
  TokenStream(const std::vector<std::string>& globs, const std::string& key);

  int64_t num_tokens() const { return starts_.back(); }
  /// Windows of `length` inputs and as many targets.
  int64_t num_samples(int64_t length) const { return num_tokens() > 0 ? (num_tokens() - 1) / length : 0; }
  /// `out`: [count]
  void read(int64_t position, int64_t count, int32_t* out) const;
  /// Appends the positions in (begin, end) at which a sequence starts: documents, and every
  /// `max_document_tokens` tokens from the start of a document.
  void sequence_starts(int64_t begin, int64_t end, std::optional<int64_t> max_document_tokens,
                       std::vector<int64_t>* out) const;

  const std::vector<std::unique_ptr<ShardReader>>& shards() const { return shards_; }
  int64_t text_bytes() const;

 private:
  std::vector<std::unique_ptr<ShardReader>> shards_;
  std::vector<int64_t> starts_ = {0};  // [shards + 1] first token of each
};

/// Throws UserError when shards of several streams come from different tokenizers, or from one whose
/// vocabulary is larger than `vocab_size` (0: unchecked).
void check_tokenizers(const std::vector<const TokenStream*>& streams, int64_t vocab_size);

}  // namespace osdn::data::detail
