// Collectives between the processes of a job, on contiguous ranges of the parameter arena. One small
// interface over NCCL, Gloo or nothing at all; every call carries the name of what it moves, so that an error
// says which rank, step and collective failed. The interface checks its arguments once; implementations only
// move data.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/board.h"
#include "dist/launch_environment.h"
#include "tensor/fwd.h"

namespace osdn::dist {

enum class CollectiveKind { kBarrier, kAllReduceSum, kAllReduceMax, kBroadcast, kAllGather, kReduceScatter };

/// all_reduce_sum, ... as errors name them.
std::string_view collective_name(CollectiveKind kind);

/// One collective, the same on every rank of the job.
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  at::Tensor range;  // [n] contiguous, any shape; undefined for a barrier. Worked on in place:
                     //   all_reduce, broadcast: all of it
                     //   all_gather: rank r brings part r of world_size equal parts, all of it is filled
                     //   reduce_scatter: part r receives the sum over ranks, the other parts become undefined
  int64_t root = 0;  // broadcast only
  std::string what;  // for errors, e.g. "gradients of bucket 3"
};

/// A collective that was started, or, while the current stream is captured into a CUDA graph, recorded: it
/// runs whenever the graph does, and wait() is recorded too. wait() returns when the range may be used: on
/// CUDA by work queued later on the current stream, without blocking the host (a barrier blocks). Not waiting
/// for a started collective is a programming error.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  virtual void wait() = 0;
};

class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// Where ranges lie.
  virtual at::Device device() const = 0;

  /// The step that errors name from now on.
  virtual void set_step(int64_t step) { step_ = step; }

  /// Contiguous tensors, of the same sizes on every rank, of which ranges are to be reduced and gathered
  /// again and again: where all GPUs are in one host and reach each other, they then exchange them by copy
  /// engines, beside the model's kernels. Kept until the end. All ranks call it at the same place; whether
  /// they do.
  virtual bool share(const std::vector<at::Tensor>& /*arenas*/) { return false; }

  /// Checks the arguments (InternalError naming rank, step and collective) and starts. Sums: float32,
  /// float64, int64. The order of sums is fixed by the ranks, so equal jobs give equal bits.
  std::unique_ptr<PendingCollective> start(const Collective& collective);

  /// Whether collectives move anything: not in a world of one that made no connections.
  virtual bool is_connected() const { return true; }

  /// Collectives that are recorded from now on belong to one more graph; the number that watch_replay() knows
  /// it by. Before its capture begins.
  virtual int64_t begin_recording() { return 0; }
  /// After a replay of that graph was queued on the current stream: that it ends is watched like a
  /// collective, whose time-out then names the first that is not done.
  virtual void watch_replay(int64_t /*recording*/) {}
  /// A collective that something else recorded into it is done at this point of the current stream: it is one
  /// of those that a time-out may name.
  virtual void record_done(const Collective& /*collective*/) {}

  /// Throws EnvironmentError naming rank, step and collective when one failed or ran into its time-out in the
  /// background. On CUDA that is known once the host has waited for the device: call it there.
  virtual void check() = 0;

  /// Ends what is under way, on any thread: the host's waits return. Nothing may be started afterwards.
  virtual void abandon() {}
  /// Two communicators that fail together: `release` runs when what is under way here is ended for a failure,
  /// by a thread in the background, before it; `broken` says why that will be, once it is so, and is empty
  /// until then. On any thread.
  virtual void fail_with(const std::function<void()>& /*release*/,
                         const std::function<std::string()>& /*broken*/) {}

  /// A board of this job; nullptr in a world of one.
  virtual std::unique_ptr<Board> open_board() = 0;

  void barrier(std::string_view what);
  void all_reduce_sum(const at::Tensor& range, std::string_view what);
  void all_reduce_max(const at::Tensor& range, std::string_view what);
  void broadcast(const at::Tensor& range, int64_t root, std::string_view what);
  void all_gather(const at::Tensor& range, std::string_view what);
  void reduce_scatter(const at::Tensor& range, std::string_view what);

  /// A copy on the host of what lies on the device. Blocks, but not within the driver: throws as check() does
  /// as soon as a collective before it fails or runs into its time-out.
  at::Tensor to_host(const at::Tensor& values);

  /// Rank 0's text on every rank; what the others give is ignored. Blocks.
  std::string broadcast_text(const std::string& text, std::string_view what);

 protected:
  /// Moves the data of a checked collective. Throws EnvironmentError beginning with describe(collective).
  virtual std::unique_ptr<PendingCollective> launch(const Collective& collective) = 0;
  /// "rank 1 of 2, step 17: all_reduce_sum of gradients of bucket 3"
  std::string describe(const Collective& collective) const;
  /// "rank 1 of 2, step 17"
  std::string place() const;

 private:
  void run(const Collective& collective) { start(collective)->wait(); }
  int64_t step_ = 0;
};

/// The communicator of this process, connected to all others when it returns: NCCL for a CUDA device (the
/// current one, of this process alone) beside what is shared, Gloo for a CPU, nothing for a world of one. No
/// collective and no meeting waits longer than `timeout`. EnvironmentError naming address, port and how many
/// ranks have come when they do not meet; UserError when they disagree on the world.
std::unique_ptr<Communicator> make_communicator(const LaunchEnvironment& launched, at::Device device,
                                                std::chrono::seconds timeout);

/// A world of one: every collective is the identity, its checks are not.
std::unique_ptr<Communicator> make_single_communicator(at::Device device);

}  // namespace osdn::dist
