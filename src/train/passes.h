// Forward and backward of one micro-batch on this rank, again and again: queued op by op, or recorded once in
// a CUDA graph and replayed, collectives included (docs/decisions/0008-what-of-a-step-is-captured.md). Same
// bits either way.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "config/config.h"
#include "data/loader.h"
#include "eval/validation.h"
#include "model/lm.h"
#include "tensor/device_graph.h"
#include "tensor/fwd.h"
#include "train/data_parallel.h"

namespace osdn::train {

struct PassOptions {
  int64_t micro_batches = 1;   // passes of a step, on this rank
  int64_t global_targets = 0;  // target tokens of the global batch: what loss and gradient are divided by
  bool residuals = false;      // whether some steps collect residual statistics
  config::Recompute recompute = config::Recompute::kNone;
  std::optional<bool> cuda_graph;  // absent: on a GPU without other ranks, where it can be
};

class Passes {
 public:
  /// Both must outlive it.
  Passes(const model::LanguageModel& model, DataParallel& parallel, const PassOptions& options);
  ~Passes();
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  const PassOptions& options() const { return options_; }

  /// A step begins: loss_sum() is 0.
  void begin_step();
  /// Pass `micro` of the step, from 0. Gradients of the batch's losses / global_targets are ADDED to the
  /// model's sinks; after the last of a step those that this rank owns are sums over the ranks. Queued on the
  /// current stream. Returns [layers, kNumResidualTerms] float64 where statistics are to be collected and
  /// there are any, else undefined.
  at::Tensor run(const data::Batch& batch, int64_t micro, bool collect_statistics);
  /// Scalar float64 on the device: losses of the step's passes.
  const at::Tensor& loss_sum() const { return loss_sum_; }

 private:
  /// Which collectives belong to a pass.
  struct Place {
    bool gathers = false;  // weights, before it
    bool sums = false;     // gradients, beside and after it
  };
  struct Recorded {
    at::Tensor statistics;  // written by every replay; undefined where no layer has any
    int64_t collectives = 0;
    DeviceGraph graph;
  };

  at::Tensor compute(const eval::DeviceBatch& input, Place place, bool collect_statistics);
  void decide();
  void fill_input(const data::Batch& batch);
  void discard();
  Recorded& recorded(Place place);

  const model::LanguageModel& model_;
  DataParallel& parallel_;
  PassOptions options_;
  at::Device device_;
  bool captures_;  // as far as is known
  bool decided_ = false;
  at::Tensor loss_sum_;        // scalar float64
  ops::SequencesPtr seen_;     // of a pass without a graph: with the lists that the ops ask for
  int64_t num_sequences_ = 0;  // that input_ has room for
  eval::DeviceBatch input_;    // where the graphs read it
  std::map<std::pair<bool, bool>, std::unique_ptr<Recorded>> graphs_;  // by place
};

}  // namespace osdn::train
