// Collectives between the processes of a job, on contiguous ranges of the parameter arena. One small
// interface over NCCL, Gloo or nothing at all; every call carries the name of what it moves, so that an error
// says which rank, step and collective failed. The interface checks its arguments once; implementations only
// move data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "config/config.h"
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

/// A collective that was started. wait() returns when the range may be used: on CUDA by work queued later on
/// the current stream, without blocking the host. Not waiting for a started collective is a programming
/// error.
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

  /// The step that errors name from now on.
  void set_step(int64_t step) { step_ = step; }

  /// Checks the arguments (InternalError naming rank, step and collective) and starts. Sums: float32,
  /// float64, int64.
  std::unique_ptr<PendingCollective> start(const Collective& collective);

  void barrier(std::string_view what);
  void all_reduce_sum(const at::Tensor& range, std::string_view what);
  void all_reduce_max(const at::Tensor& range, std::string_view what);
  void broadcast(const at::Tensor& range, int64_t root, std::string_view what);
  void all_gather(const at::Tensor& range, std::string_view what);
  void reduce_scatter(const at::Tensor& range, std::string_view what);

 protected:
  /// Moves the data of a checked collective. Throws EnvironmentError beginning with describe(collective).
  virtual std::unique_ptr<PendingCollective> launch(const Collective& collective) = 0;
  /// "rank 1 of 2, step 17: all_reduce_sum of gradients of bucket 3"
  std::string describe(const Collective& collective) const;

 private:
  void run(const Collective& collective) { start(collective)->wait(); }
  int64_t step_ = 0;
};

/// Where this process stands in its job.
struct World {
  int64_t rank = 0;
  int64_t world_size = 1;
};

/// From RANK and WORLD_SIZE (torchrun, PyTorchJob) or Open MPI's variables; one process without them.
/// UserError naming the variable when a value is no number or the rank is not below the world size.
World world_from_environment();

/// The communicator of this process. Jobs of one process are what this version runs: UserError for more.
std::unique_ptr<Communicator> make_communicator(const config::Distributed& options, const World& world);

/// A world of one: every collective is the identity, its checks are not.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace osdn::dist
