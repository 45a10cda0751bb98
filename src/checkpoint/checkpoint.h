// Checkpoints that are complete or absent (docs/formats/checkpoint.md): written under a temporary name,
// fsynced, with the digest of every file in manifest.json, then renamed. Kept by rule, written in the
// background from a host copy, verified when loaded; a damaged newest one is named and the one before it is
// used.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "tensor/fwd.h"

namespace osdn::checkpoint {

/// One tensor of a checkpoint: on load and in a snapshot a contiguous fp32 CPU tensor.
struct NamedTensor {
  std::string name;  // checkpoint name, e.g. model.norm.weight
  at::Tensor value;
};

/// What is saved: host copies, owned by the snapshot (the trainer goes on changing its own).
struct Snapshot {
  int64_t step = 0;
  std::vector<NamedTensor> weights;     // fp32 master weights by tensor name
  std::vector<NamedTensor> exp_avg;     // AdamW first moments by tensor name
  std::vector<NamedTensor> exp_avg_sq;  // second moments
  Json state;  // everything else: step, adam_step, samples_consumed, tokens, skipped counts, config, digests,
               // ...
};

/// A loaded and verified checkpoint. Moments are empty when the directory keeps weights only.
struct Loaded {
  std::string directory;
  Snapshot snapshot;
  bool weights_only = false;
  std::vector<std::string>
      skipped;  // load_newest: newer or misnamed entries that were passed over, with the reason
};

/// State of one step directory.
struct Verdict {
  bool intact = false;
  bool weights_only = false;
  int64_t step = -1;    // of the manifest, when that could be read
  std::string problem;  // file and reason when not intact
};

/// Checks manifest and digests of one step directory without loading tensors.
Verdict verify(const std::string& directory);

/// Loads one step directory, verified. Throws DataError naming file and reason.
Loaded load(const std::string& directory);

/// What load_newest does with the temporary names of killed writers. A reader beside a running trainer keeps
/// them.
enum class Leftovers { kRemove, kKeep };

/// The newest complete checkpoint with optimiser state below `checkpoints_directory`, verified; damaged or
/// incomplete newer ones are logged by name and reason, listed in `skipped`, and passed over. nullopt when
/// there is no checkpoint at all; DataError when there are some and none can be resumed from, so that a run
/// never starts over unasked. Leftovers of writers that ended are reported and removed.
std::optional<Loaded> load_newest(const std::string& checkpoints_directory,
                                  Leftovers leftovers = Leftovers::kRemove);

/// Writes checkpoints of one run; there is one Writer a run directory at a time. One writer thread; save()
/// returns as soon as the snapshot is queued when asynchronous (at most one in flight: a second save waits
/// for the first).
class Writer {
 public:
  Writer(std::string checkpoints_directory, config::Checkpoint options);
  ~Writer();  // waits for the write in flight; logs its error if it had one
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Checks free space first. An error of an earlier background write surfaces here (EnvironmentError), once;
  /// the snapshot given then is not saved.
  void save(Snapshot snapshot);
  /// Waits until everything queued is on the medium; throws the writer's error if there was one.
  void wait();
  /// Step of the newest checkpoint completed by this writer, or -1.
  int64_t newest_step() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Bytes that a checkpoint of this many parameters takes (weights and both moments).
uint64_t checkpoint_bytes(int64_t num_parameters);

}  // namespace osdn::checkpoint
