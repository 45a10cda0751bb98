// Makes a sentencepiece model from text: BPE or unigram with byte fallback, identity normalisation, every
// space kept, so that any valid UTF-8 round-trips. Equal text and settings give equal bytes, whatever the
// order of the documents.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config.h"
#include "data/tokenizer.h"

namespace osdn::data {

/// A stretch of text for the trainer with the hash that ranks it.
struct TrainingStretch {
  uint64_t rank = 0;
  std::string text;
  bool operator<(const TrainingStretch& other) const {
    return rank != other.rank ? rank < other.rank : text < other.text;
  }
};

/// A uniform sample of a corpus that holds at most `limit_bytes`: the stretches with the smallest hashes of
/// their content. It depends on what was added, not on the order.
class TrainingSample {
 public:
  static constexpr size_t kLimitBytes = 64 << 20;

  explicit TrainingSample(size_t limit_bytes = kLimitBytes) : limit_bytes_(limit_bytes) {}

  /// Cuts a document into stretches of at most 4 KB, before spaces where there are any, and leaves out those
  /// that the sample would drop anyway. Thread-safe beside add.
  std::vector<TrainingStretch> cut(std::string_view document) const;
  void add(std::vector<TrainingStretch> stretches);

  size_t size_bytes() const { return size_bytes_; }
  /// In the order of their ranks.
  std::vector<TrainingStretch> sorted() const;

 private:
  size_t limit_bytes_;
  size_t size_bytes_ = 0;
  std::vector<TrainingStretch> heap_;               // largest rank on top
  std::atomic<uint64_t> largest_rank_{UINT64_MAX};  // stretches above it need not be added
};

/// Throws UserError for a vocabulary that no text can have: below the bytes, the special pieces and one more.
void check_vocabulary_size(int64_t vocab_size);

/// unk = 0, bos = 1, eos = 2, no pad, then the 256 byte pieces. Throws UserError when the vocabulary is too
/// large for the text (naming the largest possible size) or too small for its characters, or when there is no
/// text.
Tokenizer train_tokenizer(const TrainingSample& sample, const config::TrainTokenizer& settings);

}  // namespace osdn::data
