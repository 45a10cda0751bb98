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
#include "checkpoint/team.h"
#include "checkpoint/verify.h"
#include "config/config.h"
#include "tensor/fwd.h"

namespace osdn::checkpoint {

class Publisher;

/// One tensor of a checkpoint: on load and in a snapshot a contiguous fp32 CPU tensor.
struct NamedTensor {
  std::string name;  // checkpoint name, e.g. model.norm.weight
  at::Tensor value;
};

/// AdamW's moments of the elements [begin, end) of one flattened tensor: contiguous fp32 CPU tensors of end -
/// begin elements, in the tensor's own shape when the slice is the whole tensor.
struct MomentSlice {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor exp_avg;     // [end - begin] or the tensor's shape
  at::Tensor exp_avg_sq;  // as exp_avg
};

/// What is saved: host copies, owned by the snapshot (the trainer goes on changing its own). Without moments:
/// a checkpoint of weights only. Of a rank whose moments are shared out: `slices` instead of moments by
/// tensor, and weights and state on rank 0 alone.
struct Snapshot {
  int64_t step = 0;
  std::vector<MomentSlice> slices;
  int64_t num_shards = 1;               // ranks that write optimizer shards
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

/// Loads one step directory, verified. Throws DataError naming file and reason.
Loaded load(const std::string& directory);

/// What load_newest does with the temporary names of killed writers. Whoever holds the run's lock removes
/// them: no writer can be alive beside it. A reader beside a running trainer keeps them.
enum class Leftovers { kRemove, kKeep };

/// Which checkpoints load_newest looks for: those that a run resumes from, or any with intact weights.
enum class Wanted { kResumable, kWeights };

/// The newest complete checkpoint (with optimiser state, unless only weights are wanted) below
/// `checkpoints_directory`, verified; damaged or incomplete newer ones are logged by name and reason, listed
/// in `skipped`, and passed over. nullopt when there is no checkpoint at all; DataError when there are some
/// and none can be resumed from, so that a run never starts over unasked. Leftovers of killed writers are
/// reported and removed.
std::optional<Loaded> load_newest(const std::string& checkpoints_directory,
                                  Leftovers leftovers = Leftovers::kRemove,
                                  Wanted wanted = Wanted::kResumable);

/// Writes checkpoints of one run; there is one Writer a run directory at a time. One writer thread; save()
/// returns as soon as the snapshot is queued when asynchronous (at most one in flight: a second save waits
/// for the first).
class Writer {
 public:
  /// Creates the directory and tries that it can be written to, so that a run ends before its first step and
  /// not at its first checkpoint.
  /// With a team, every rank that has a shard to write has a Writer and saves the same steps; rank 0 makes
  /// the checkpoint complete when the files of all are durable, or removes it and throws.
  Writer(std::string checkpoints_directory, config::Checkpoint options, Team team = {});
  ~Writer();  // waits for the write in flight; logs its error if it had one
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Before the first save of a run that goes on from the checkpoint `name` (a directory's name), verified:
  /// does what a kill may have kept an earlier process from, `latest` and the removal of older ones.
  void adopt(const std::string& name);
  /// Checks first that the directory is still there and has the space. An error of an earlier background
  /// write surfaces here (EnvironmentError), once; the snapshot given then is not saved.
  void save(const Snapshot& snapshot);
  /// Throws the error of an earlier background write if there is one, once; never waits.
  void check();
  /// Waits until everything queued is on the medium; throws the writer's error if there was one.
  void wait();
  /// Step of the newest checkpoint completed by this writer, or -1.
  int64_t newest_step() const;

 private:
  Team team_;
  std::unique_ptr<Publisher> publisher_;
};

/// Bytes that a checkpoint of this many parameters takes (weights and both moments).
uint64_t checkpoint_bytes(int64_t num_parameters);

}  // namespace osdn::checkpoint
