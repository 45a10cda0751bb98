// Validation loss: the mean over all target tokens of a fixed set of windows, whatever their split into
// batches.
#pragma once

#include <functional>

#include "data/loader.h"
#include "metrics/step_record.h"
#include "model/lm.h"
#include "tensor/fwd.h"

namespace osdn::eval {

/// How several processes share out the batches of a set.
struct Share {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::function<void(const at::Tensor& sums)> add_up;  // in place over all processes; float64 on the device
};

/// Token-weighted loss, perplexity and bits per byte of the whole set, the same bits with any number of
/// processes. Changes nothing: no gradient, no state, no random numbers.
metrics::Validation validate(const model::LanguageModel& model, const data::ValidationSet& set,
                             at::Device device, const Share& share = {});

/// Token tensors of a batch on a device: inputs and targets, each [B * T] int64.
struct DeviceBatch {
  at::Tensor inputs;
  at::Tensor targets;
  ops::SequencesPtr sequences;
};
/// Queued on the current stream. `padded_to` > 0: Sequences::padded() to so many.
DeviceBatch to_device(const data::Batch& batch, at::Device device, int64_t padded_to = 0);

}  // namespace osdn::eval
