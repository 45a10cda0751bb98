// Learning rate by step (docs/config.md, optimizer.schedule).
#pragma once

#include <cstdint>

#include "config/config.h"

namespace osdn::optim {

/// Rate of step n (from 1) of N: peak n / w for n <= w; then
///   cosine    peak (f + (1 - f) (1 + cos(pi (n - w) / (N - w))) / 2)
///   linear    peak (1 - (1 - f) (n - w) / (N - w))
///   wsd       peak until the last decay_fraction of the steps, which fall linearly to f peak
///   constant  peak
double learning_rate(const config::Optimizer& optimizer, int64_t num_steps, int64_t step);

}  // namespace osdn::optim
