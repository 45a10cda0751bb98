#include "train/update.h"

#include <cmath>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/schedule.h"
#include "tensor/torch.h"

namespace osdn::train {
namespace update_detail {

/// Name of the first parameter, in arena order, whose gradient is not finite on any rank; empty when all are.
std::string culprit(const UpdateContext& context) {
  const optim::ParameterArena& arena = context.arena;
  at::Tensor first = at::full({1}, -optim::first_nonfinite(arena), at::TensorOptions().dtype(at::kLong))
                         .to(context.communicator.device());  // [1]
  context.communicator.all_reduce_max(first, "the first parameter with a gradient that is not finite");
  const auto position = static_cast<size_t>(-first.item<int64_t>());
  return position < arena.slots().size() ? arena.slots()[position].spec.name : "";
}

void count_skipped(const metrics::StepRecord& record, TrainState& state, int64_t saved_step,
                   const UpdateContext& context) {
  const std::string parameter = culprit(context);
  // A finite gradient is skipped when its squares overflow fp32.
  const std::string where = !parameter.empty()           ? "the gradient of " + parameter
                            : std::isfinite(record.loss) ? "the square of the gradient"
                                                         : "the loss";
  const std::string last_good = saved_step < 0
                                    ? std::string("there is no checkpoint yet")
                                    : fmt::format("the last good checkpoint is step {}", saved_step);
  if (!context.options.skip_nonfinite)
    throw UserError(
        "step {}: {} is not finite (loss {}, gradient norm {}) and optimizer.skip_nonfinite is false; {}",
        record.step, where, record.loss, record.grad_norm, last_good);
  ++state.skipped_total;
  ++state.skipped_in_row;
  log::warning("step {}: {} is not finite (loss {}, gradient norm {}): the update is skipped ({} in a row)",
               record.step, where, record.loss, record.grad_norm, state.skipped_in_row);
  if (state.skipped_in_row >= context.options.max_skipped_in_row)
    throw UserError(
        "step {}: {} steps in a row were skipped for non-finite values (optimizer.max_skipped_in_row); {}; "
        "lower "
        "optimizer.learning_rate or optimizer.clip_norm",
        record.step, state.skipped_in_row, last_good);
}

}  // namespace update_detail

void update_or_skip(metrics::StepRecord& record, TrainState& state, int64_t saved_step,
                    const UpdateContext& context) {
  const config::Optimizer& options = context.options;
  record.learning_rate = optim::learning_rate(options, context.steps, record.step);
  const double factor = optim::clip_factor(record.grad_norm, options.clip_norm);
  record.clipped = factor < 1.0;
  record.skipped = !optim::is_usable_norm(record.grad_norm * factor) || !std::isfinite(record.loss);
  if (record.skipped) {
    update_detail::count_skipped(record, state, saved_step, context);
    return;
  }
  state.skipped_in_row = 0;
  ++state.updates;
  context.parallel.update({.beta1 = options.betas[0],
                           .beta2 = options.betas[1],
                           .eps = options.eps,
                           .weight_decay = options.weight_decay},
                          record.learning_rate, state.updates, factor);
}

}  // namespace osdn::train
