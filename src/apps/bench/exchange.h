// What the exchange of gradients and weights costs a training step of several ranks: by itself, and beside
// the passes that are to hide it.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "dist/launch_environment.h"

namespace osdn::bench {

struct ExchangeTimes {
  int64_t parameters = 0;
  int64_t ranks = 0;
  int64_t sequences = 0;          // of a rank's micro-batch
  double gradients_ms = 0;        // of the exchange alone: all sums of a step
  double weights_ms = 0;          // and all gathering of weights; 0 with ZeRO-0
  double gradients_gb_per_s = 0;  // bus rates: what crosses each rank's link, over the time
  double weights_gb_per_s = 0;
  double step_ms = 0;            // with the exchange beside it
  double step_gradients_ms = 0;  // with its sums of gradients alone
  double step_alone_ms = 0;      // the same step without any

  /// Of the exchange's own time, what does not lengthen a step.
  double hidden_share() const { return 1 - (step_ms - step_alone_ms) / (gradients_ms + weights_ms); }
  /// The same of the sums of gradients, which backward is to hide.
  double hidden_by_backward() const { return 1 - (step_gradients_ms - step_alone_ms) / gradients_ms; }
};

/// Called by every rank; the same times on all of them: medians, of the slowest rank where they exchange
/// only. The model of the configuration with its micro-batch on random tokens; `steps` of each kind, in turn.
/// Throws InternalError when what arrives is not what was sent; UserError for a world of one and values that
/// a bench cannot settle.
ExchangeTimes measure_exchange(config::Config config, const dist::LaunchEnvironment& launched, int64_t steps);

}  // namespace osdn::bench
