// The weights of a Hugging Face model directory: one model.safetensors, or shards with
// model.safetensors.index.json (docs/formats/exchange.md). An index is never trusted: every shard is read and
// must hold exactly the tensors that the index places there.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"

namespace osdn::checkpoint {

inline constexpr const char* kModelIndexFile = "model.safetensors.index.json";

struct ModelFiles {
  TensorList tensors;                                        // sorted by name, dtypes as stored
  std::vector<std::pair<std::string, std::string>> digests;  // file name and XXH3-128 of its bytes
};

/// Throws DataError naming tensor and file where index and shards disagree, for a shard outside the directory
/// and for damaged files; UserError when the directory holds no weights in this format.
ModelFiles read_model_files(const std::string& directory);

/// Writes the tensors (as write_safetensors takes them) sorted by name, fsynced: model.safetensors, or, when
/// they are more than `max_shard_bytes`, shards and an index; a tensor is never cut. Returns the names
/// written.
std::vector<std::string> write_model_files(const std::string& directory, TensorList tensors,
                                           uint64_t max_shard_bytes);

}  // namespace osdn::checkpoint
