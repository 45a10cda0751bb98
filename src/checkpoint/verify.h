// Whether a step directory is intact, by its manifest and the digests of its files; no tensor is loaded.
#pragma once

#include <cstdint>
#include <string>

namespace osdn::checkpoint {

/// State of one step directory.
struct Verdict {
  bool intact = false;
  bool weights_only = false;
  int64_t step = -1;    // of the manifest, when that could be read
  std::string problem;  // file and reason when not intact
};

/// Checks manifest and digests of one step directory without loading tensors.
Verdict verify(const std::string& directory);

}  // namespace osdn::checkpoint
