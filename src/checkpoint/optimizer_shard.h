// optimizer-R-of-W.safetensors: the AdamW moments of one rank as slices of tensors, so that a run saved by W
// ranks resumes on any other number (docs/formats/checkpoint.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "tensor/fwd.h"

namespace osdn::checkpoint {

struct ShardPlace {
  int64_t step = 0;
  int64_t rank = 0;
  int64_t world_size = 1;
};

/// Returns the file's digest.
Digest128 write_optimizer_shard(const std::string& path, const ShardPlace& place,
                                const std::vector<MomentSlice>& slices);

/// Size that write_optimizer_shard gives the file, in bytes.
uint64_t optimizer_shard_bytes(const ShardPlace& place, const std::vector<MomentSlice>& slices);

/// Puts the moments of all weights together from the shards of any number of ranks. A moment that one shard
/// holds whole is handed on as it was read.
class MomentAssembler {
 public:
  /// `weights` give names and shapes and must outlive the assembler.
  explicit MomentAssembler(const std::vector<NamedTensor>& weights);
  /// DataError when the shard is of another place, names an unknown tensor, or its slices do not fit.
  void add(const std::string& path, const SafetensorsFile& file, const ShardPlace& place);
  /// DataError naming the tensor and `directory` when an element is missing or was given twice.
  void finish(const std::string& directory, std::vector<NamedTensor>* exp_avg,
              std::vector<NamedTensor>* exp_avg_sq);

 private:
  struct Moments {
    at::Tensor exp_avg;     // shape of the weight, or undefined before the first slice
    at::Tensor exp_avg_sq;  // as exp_avg
    std::vector<std::pair<int64_t, int64_t>> covered;  // [begin, end) of every slice so far
  };
  const std::vector<NamedTensor>& weights_;
  std::map<std::string, size_t> index_;
  std::vector<Moments> moments_;  // in the order of weights_
};

}  // namespace osdn::checkpoint
