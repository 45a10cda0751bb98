// How packed tokens divide into sequences (documents or windows), and the index tables the ops derive from it
// once a batch, shared by all layers. Tokens of sequence s are rows offsets[s] .. offsets[s+1]-1 of every [N,
// ...] tensor.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tensor/fwd.h"

namespace osdn::ops {

// S: sequences; N: tokens in all; C: chunk length; M: chunks in all.

/// Chunks of at most C tokens, none crossing a sequence bound, in time-major order: first the first chunk of
/// every non-empty sequence (longest sequence first), then the second chunks, ... so that step j of a scan
/// over chunks works on chunks step_begin[j] .. step_begin[j+1]-1 and on the prefix of the sequences in
/// `order`.
struct ChunkTable {
  int64_t chunk_size = 0;
  at::Tensor gather;   // [M * C] int64: token row of each slot; N (one past the end) for padding slots
  at::Tensor scatter;  // [N] int64: slot of each token
  std::vector<int64_t> step_begin;  // [steps + 1]
};

/// The same chunks sequence after sequence, for kernels that find a chunk's tokens themselves. That of padded
/// sequences is longer than there are chunks: what is behind them belongs to the last sequence, after its
/// end.
struct ChunkList {
  at::Tensor offsets;    // [S + 1] int64: first chunk of each sequence
  at::Tensor sequences;  // [M] int64: sequence of each chunk
  int64_t num_chunks = 0;
};

class Sequences {
 public:
  /// `offsets`: S + 1 ascending values, first 0; equal neighbours are empty sequences. Throws UserError
  /// otherwise.
  static std::shared_ptr<const Sequences> make(std::vector<int64_t> offsets, at::Device device);
  /// `num` sequences of `length` tokens each.
  static std::shared_ptr<const Sequences> equal(int64_t num, int64_t length, at::Device device);

  /// As make() with empty sequences behind it, `num_sequences` in all, and chunk lists as long as the longest
  /// of so many sequences of so many tokens: two such objects with equal numbers of tokens and sequences
  /// differ in the contents of their device tensors alone, as long as only those are read.
  static std::shared_ptr<const Sequences> padded(std::vector<int64_t> offsets, int64_t num_sequences,
                                                 at::Device device);

  int64_t num_sequences() const { return static_cast<int64_t>(host_.size()) - 1; }
  int64_t num_tokens() const { return host_.back(); }
  int64_t max_length() const { return max_length_; }
  const std::vector<int64_t>& host_offsets() const {  // [S + 1]
    lengths_read_ = true;
    return host_;
  }
  const at::Tensor& offsets() const { return device_offsets_; }  // [S + 1] int64, on the device

  /// Sequences by falling length (stable), as rows of an [S, ...] state tensor: [S] int64 on the device. The
  /// scans work on states in this order.
  const at::Tensor& order() const { return order_; }
  const at::Tensor& inverse_order() const { return inverse_order_; }  // [S]

  /// The table for a chunk length; made at the first request, then shared. chunk_size 1 gives the
  /// token-by-token order.
  const ChunkTable& chunks(int64_t chunk_size) const;
  /// Likewise shared.
  const ChunkList& chunk_list(int64_t chunk_size) const;

  /// Whether any op has made its work on the host depend on single lengths: by host_offsets() or chunks().
  bool lengths_read() const { return lengths_read_; }

  /// Makes the lists that `like` has: nothing is made at a first request any more.
  void prepare_lists(const Sequences& like) const;
  /// Fills the device tensors, lists included, with those of `other`, which has the same sizes. What the host
  /// knows stays. For a CUDA graph, which reads the tensors where they are.
  void copy_tensors(const Sequences& other) const;

 private:
  Sequences(std::vector<int64_t> offsets, at::Device device, bool padded);
  int64_t chunk_capacity(int64_t chunk_size) const;
  std::vector<int64_t> host_;
  bool padded_;
  int64_t max_length_ = 0;
  std::vector<int64_t> host_order_;
  at::Tensor device_offsets_;
  at::Tensor order_;
  at::Tensor inverse_order_;
  mutable std::atomic<bool> lengths_read_{false};
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::unique_ptr<ChunkTable>> tables_;
  mutable std::map<int64_t, std::unique_ptr<ChunkList>> lists_;
};

using SequencesPtr = std::shared_ptr<const Sequences>;

/// While one lives, what this thread computes without gradients (at::NoGradGuard) for a sequence on a GPU has
/// the same bits whatever the other sequences are and however many: products and sums over rows whose order
/// of adding does not depend on the number of rows, softmax attention sequence by sequence. For decoding;
/// training is faster without. Does nothing on a CPU, where inference has that property always.
class SequencesApart {
 public:
  SequencesApart();
  ~SequencesApart();
  SequencesApart(const SequencesApart&) = delete;
  SequencesApart& operator=(const SequencesApart&) = delete;

  /// Whether `x` is computed with by these rules now.
  static bool holds_for(const at::Tensor& x);

 private:
  bool before_;
};

}  // namespace osdn::ops
