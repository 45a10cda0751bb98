// safetensors files: written as the reference implementation reads them, read defensively (truncated,
// overlapping, oversized headers, wrong dtypes: DataError naming file and tensor; never an over-read).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "base/hash.h"
#include "tensor/fwd.h"

namespace osdn::checkpoint {

using TensorList = std::vector<std::pair<std::string, at::Tensor>>;

struct SafetensorsFile {
  TensorList tensors;  // in file order; CPU, contiguous, dtype as stored
  std::map<std::string, std::string> metadata;
};

/// Streams header and data into `path` and fsyncs it. Tensors: CPU, contiguous, F64 F32 F16 BF16 I64 I32 I16
/// I8 U8 BOOL, written from where they lie. Wider elements come first, so that every tensor is aligned;
/// otherwise the given order. Returns the XXH3-128 digest of what was written.
Digest128 write_safetensors(const std::string& path, const TensorList& tensors,
                            const std::map<std::string, std::string>& metadata);

/// Reads all tensors, each straight into its own memory. `digest`, when given, receives the XXH3-128 digest
/// of the whole file, computed on the way. Throws DataError for a damaged or foreign file, EnvironmentError
/// for an unreadable one.
SafetensorsFile read_safetensors(const std::string& path, Digest128* digest = nullptr);

/// Size that write_safetensors gives the file, in bytes.
uint64_t safetensors_bytes(const TensorList& tensors, const std::map<std::string, std::string>& metadata);

}  // namespace osdn::checkpoint
