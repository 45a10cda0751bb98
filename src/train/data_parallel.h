// Data parallelism: every rank computes the gradient of its share of the global batch. Gradients are summed
// in fp32, bucket by bucket, while backward still runs; with ZeRO-1 each rank receives, updates and keeps the
// moments of its part of every bucket alone, and the parts of the new weights are gathered while the next
// forward pass runs. In a world of one all of it is the plain step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/config.h"
#include "dist/communicator.h"
#include "model/lm.h"
#include "optim/adamw.h"
#include "optim/parameter_arena.h"
#include "tensor/fwd.h"

namespace osdn::train {

/// How `zero` (0 or 1) shares an arena of so many parameters out among the ranks.
optim::ParameterArena::Sharding arena_sharding(const dist::Communicator& communicator, int64_t zero,
                                               int64_t num_parameters);

class DataParallel {
 public:
  /// Arena and communicator must outlive it; the arena was made with arena_sharding. All ranks make it at the
  /// same place.
  DataParallel(optim::ParameterArena& arena, dist::Communicator& communicator, int64_t num_layers,
               config::Exchange exchange = config::Exchange::kAuto);
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // A step: begin_passes(), passes with hooks(), finish_gradients(), then update() or nothing.

  /// From now on the weights that update() leaves in parts are gathered by begin_passes(), so that a graph
  /// into which the passes are recorded does it. The same on all ranks.
  void gather_in_passes() { gathers_in_passes_ = arena_.is_sharded(); }
  bool gathers_in_passes() const { return gathers_in_passes_; }
  /// Whether passes of the last micro-batch start collectives.
  bool sums_gradients() const { return connected_; }

  /// Before the forward pass of the first micro-batch; may be recorded with it.
  void begin_passes();
  /// A graph in which that was recorded is replayed.
  void passes_begun() { in_parts_ = false; }
  /// For the forward and backward pass of a micro-batch; that of the last of a step starts to sum gradients.
  const model::LayerHooks* hooks(bool last_micro_batch);
  /// The sums of all that this rank owns are complete for work queued from here on. May be recorded with the
  /// last pass.
  void finish_gradients();
  /// One AdamW step of what this rank owns; starts to gather the weights, or leaves that to begin_passes().
  void update(const optim::AdamWOptions& options, double learning_rate, int64_t update,
              double gradient_scale);

  /// Starts to gather what every rank has of the weights that the ops read; of an arena that is sharded.
  void gather_weights();
  /// All weights that the ops read are complete for work queued from here on.
  void wait_for_weights();
  /// All masters on the host of rank 0, [arena.size()] fp32, to be saved; undefined on the others. Waits for
  /// the weights too; blocks.
  at::Tensor gather_masters();

  /// Square of the global gradient norm from every rank's optim::gradient_squares.
  double add_squares(const std::vector<std::vector<double>>& squares_of_ranks) const;

  dist::Communicator& communicator() const { return communicator_; }

 private:
  void after_backward(int64_t layer);
  void reduce_next_bucket();
  void reduce_common();
  void gather(int64_t bucket);
  void wait_for_bucket(int64_t bucket);

  optim::ParameterArena& arena_;
  dist::Communicator& communicator_;
  bool connected_;
  bool gathers_in_passes_ = false;
  bool in_parts_ = false;                         // update() has left the new weights to be gathered
  std::vector<int64_t> complete_;                 // by layer: buckets whose gradients its backward completes
  int64_t common_complete_ = 0;                   // the layer whose backward completes what all ranks update
  int64_t first_burst_ = 0;                       // buckets that are complete before any is summed
  std::vector<std::vector<int64_t>> weights_in_;  // by layer: buckets with weights that it reads
  model::LayerHooks first_hooks_;                 // of all micro-batches of a step but the last
  model::LayerHooks last_hooks_;
  std::vector<std::unique_ptr<dist::PendingCollective>> reductions_;  // started, by bucket
  std::vector<std::unique_ptr<dist::PendingCollective>> common_;      // started, of what all ranks update
  std::vector<std::unique_ptr<dist::PendingCollective>> gathers_;     // by bucket; null: not running
};

/// What every rank gives, on every rank, by rank: [n] float64 on the communicator's device, n equal on all.
/// Blocks; throws what went wrong with any collective before.
std::vector<std::vector<double>> exchange(dist::Communicator& communicator, const at::Tensor& row,
                                          const char* what);

}  // namespace osdn::train
