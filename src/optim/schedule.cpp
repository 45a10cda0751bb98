#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace osdn::optim {

double learning_rate(const config::Optimizer& optimizer, int64_t num_steps, int64_t step) {
  const double peak = optimizer.learning_rate;
  const double floor_ratio = optimizer.final_ratio;
  const auto n = static_cast<double>(step);
  const auto w = static_cast<double>(optimizer.warmup_steps);
  const auto N = static_cast<double>(num_steps);
  if (n <= w) return peak * n / w;
  const double progress = N > w ? std::min(1.0, (n - w) / (N - w)) : 1.0;
  switch (optimizer.schedule) {
    case config::Schedule::kCosine:
      return peak * (floor_ratio + (1 - floor_ratio) * (1 + std::cos(std::numbers::pi * progress)) / 2);
    case config::Schedule::kLinear:
      return peak * (1 - (1 - floor_ratio) * progress);
    case config::Schedule::kWarmupStableDecay: {
      const double start = std::max(w, N * (1 - optimizer.decay_fraction));
      if (n <= start || N <= start) return peak;
      return peak * (1 - (1 - floor_ratio) * std::min(1.0, (n - start) / (N - start)));
    }
    case config::Schedule::kConstant:
      return peak;
  }
  return peak;
}

}  // namespace osdn::optim
