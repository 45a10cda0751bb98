// manifest.json: which files a checkpoint consists of, their sizes and digests, and the digest of the
// manifest itself (docs/formats/checkpoint.md). What it does not name is no part of the checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace osdn::checkpoint {

struct ManifestFile {
  std::string name;
  uint64_t size_bytes = 0;
  std::string digest;  // XXH3-128, 32 hexadecimal digits
};

struct Manifest {
  int64_t step = 0;
  int64_t num_optimizer_shards = 0;  // 0: weights only
  std::vector<ManifestFile> files;   // model, state, optimizer shards by rank
  const ManifestFile& file(const std::string& name) const;
};

/// The one text that stands for this manifest, its own digest included.
std::string to_text(const Manifest& manifest);

/// Reads and checks manifest.json of a step directory; DataError naming file and reason when it is absent,
/// not exactly what to_text writes, of another format version, or belongs to another step than the
/// directory's name says.
Manifest read_manifest(const std::string& directory);

/// Every named file is there with its size, and nothing else is. DataError naming file and reason otherwise.
void check_listing(const std::string& directory, const Manifest& manifest);

/// state.json, verified against the manifest's digest and step. DataError naming the file otherwise.
Json read_state(const std::string& directory, const Manifest& manifest);

/// Compares a digest that was computed while reading; DataError naming the file when they differ.
void check_digest(const std::string& directory, const ManifestFile& file, const std::string& found);

}  // namespace osdn::checkpoint
