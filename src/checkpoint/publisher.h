// Puts the files of a checkpoint in place, complete or absent, in the background when asked to: free space,
// staging, one rename, `latest`, retention. It knows files by name, size and what writes them; tensors are
// the caller's, and so this is free of LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "checkpoint/team.h"
#include "config/config.h"

namespace osdn::checkpoint {

/// A file that is to be written.
struct PendingFile {
  std::string name;
  uint64_t size_bytes = 0;
  std::function<Digest128(const std::string& path)>
      write;  // creates `path`; returns once it is on the medium
};

/// A checkpoint that is to be written: every file of this process but the manifest, in the manifest's order.
struct PendingCheckpoint {
  int64_t step = 0;
  int64_t num_optimizer_shards = 0;
  std::vector<PendingFile> files;
  uint64_t bytes_of_others = 0;  // what the other ranks will write, about
};

/// See Writer in checkpoint.h, whose contract this is.
class Publisher {
 public:
  Publisher(std::string checkpoints_directory, config::Checkpoint options, Team team = {});
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  void adopt(const std::string& name);
  void save(PendingCheckpoint pending);
  void check();
  void wait();
  int64_t newest_step() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace osdn::checkpoint
