// Batches of token windows in an order that depends on (seed, epoch, index) alone (data/sample_order.h), read
// ahead in the background. The loader's whole state is the number of samples consumed: prefetched batches
// that were not handed out do not count.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace osdn::data {

// B: windows; T: sequence length.
struct Batch {
  std::vector<int32_t> tokens;  // [B, T + 1] window i is tokens iT .. iT+T of the concatenation
  std::vector<int64_t>
      offsets;  // [S + 1] sequence bounds over the B * T input tokens, first 0, last B * T: every window
                // start, and with documents: reset every document start inside a window as well
  int64_t first_sample = 0;  // samples consumed before this batch
  int64_t epoch = 0;         // epoch of its first sample
  int64_t num_windows() const { return num_windows_; }
  int64_t num_windows_ = 0;
};

struct LoaderOptions {
  int64_t sequence_length = 0;
  config::Documents documents = config::Documents::kReset;
  std::optional<int64_t> max_document_tokens;
  int64_t seed = 0;
  int64_t global_batch_sequences = 0;  // windows of one step, over all ranks
  int64_t micro_batch_sequences = 0;   // windows of one next() on this rank
  int64_t rank = 0;                    // this rank takes windows rank*share .. of every global batch
  int64_t world_size = 1;
  int64_t samples_consumed = 0;  // where to start
  int64_t prefetch = 4;          // micro-batches read ahead
  int64_t vocab_size = 0;        // every token must be below; 0: unchecked
};

/// Training loader over weighted sources of shards.
class Loader {
 public:
  /// Opens and checks every shard. Throws UserError (nothing matches the glob, sequence longer than the data,
  /// ...) or DataError (damaged, foreign, inconsistent shards), naming the file.
  Loader(const std::vector<config::WeightedSource>& sources, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next micro-batch of this rank, blocking until it is read. An error in the reading thread surfaces
  /// here.
  Batch next();

  /// Samples of all global batches that next() has handed out completely (over all ranks).
  int64_t samples_consumed() const;
  int64_t samples_per_epoch() const;
  int64_t num_tokens() const;
  /// Digest over the shards' own token digests, in order: part of what makes two runs the same.
  std::string digest() const;
  /// Digest of the tokenizer that made the shards.
  std::string tokenizer_digest() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The first `sequences` windows of the validation shards in file order, as batches of at most `batch`
/// windows.
class ValidationSet {
 public:
  ValidationSet(const std::vector<std::string>& globs, int64_t sequences, int64_t batch,
                const LoaderOptions& options);
  ~ValidationSet();
  int64_t num_batches() const;
  Batch batch(int64_t index) const;
  /// Bytes of text behind the target tokens, for bits per byte (by the shards' own bytes-per-token ratio).
  double bytes_per_token() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace osdn::data
