// safetensors files: written as the reference implementation reads them, read defensively (truncated, overlapping,
// oversized headers, wrong dtypes: DataError naming file and tensor; never an over-read).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/hash.h"
#include "tensor/fwd.h"

namespace osdn::checkpoint {

struct SafetensorsFile {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // in file order; CPU, contiguous, dtype as stored
  std::map<std::string, std::string> metadata;
};

/// Streams header and data into `path` and fsyncs it. Tensors: CPU, contiguous, F64 F32 F16 BF16 I64 I32 U8 BOOL.
/// Returns the XXH3-128 digest of what was written.
Digest128 write_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                            const std::map<std::string, std::string>& metadata);

SafetensorsFile read_safetensors(const std::string& path);

}  // namespace osdn::checkpoint
