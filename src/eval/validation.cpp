#include "eval/validation.h"

#include <cmath>
#include <numbers>

#include "tensor/torch.h"

namespace osdn::eval {

DeviceBatch to_device(const data::Batch& batch, at::Device device, int64_t padded_to) {
  // from_blob reads the batch's memory; the conversions copy it, to a GPU from pinned memory without waiting.
  const int64_t windows = batch.num_windows();
  const int64_t row = static_cast<int64_t>(batch.tokens.size()) / windows;
  at::Tensor host = at::from_blob(const_cast<int32_t*>(batch.tokens.data()), {windows, row},
                                  at::TensorOptions().dtype(at::kInt));
  if (device.is_cuda()) host = host.pin_memory();
  const at::Tensor tokens = host.to(device, /*non_blocking=*/device.is_cuda()).to(at::kLong);  // [B, T + 1]
  return {.inputs = tokens.narrow(1, 0, row - 1).reshape({-1}),
          .targets = tokens.narrow(1, 1, row - 1).reshape({-1}),
          .sequences = padded_to > 0 ? ops::Sequences::padded(batch.offsets, padded_to, device)
                                     : ops::Sequences::make(batch.offsets, device)};
}

metrics::Validation validate(const model::LanguageModel& model, const data::ValidationSet& set,
                             at::Device device, const Share& share) {
  const at::NoGradGuard no_grad;
  // Loss sum and targets of every batch: those of other processes are zero here, so adding up changes none.
  at::Tensor sums = at::zeros({set.num_batches(), 2}, at::TensorOptions().dtype(at::kDouble).device(device));
  for (int64_t index = share.rank; index < set.num_batches(); index += share.world_size) {
    const DeviceBatch batch = to_device(set.batch(index), device);
    model::ForwardCall call{.sequences = batch.sequences};
    // Row losses summed in float64: the sum does not depend on how windows share batches.
    sums[index][0] = model.loss_rows(batch.inputs, batch.targets, call).sum(at::kDouble);
    sums[index][1] = static_cast<double>(batch.targets.numel());
  }
  if (share.world_size > 1) share.add_up(sums);
  sums = sums.to(at::kCPU);
  double loss_sum = 0;
  double targets = 0;
  for (int64_t index = 0; index < set.num_batches(); ++index) {
    loss_sum += sums[index][0].item<double>();
    targets += sums[index][1].item<double>();
  }
  const double loss = loss_sum / targets;
  return {.loss = loss,
          .perplexity = std::exp(loss),
          .bits_per_byte = loss / (std::numbers::ln2 * set.bytes_per_token())};
}

}  // namespace osdn::eval
