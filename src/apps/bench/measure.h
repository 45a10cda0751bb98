// How long work takes: medians of many samples after a warm-up, on a GPU by its own clock and with a cold L2
// cache.
#pragma once

#include <functional>

#include "tensor/fwd.h"

namespace osdn::bench {

struct Time {
  double median_ms = 0;
  double spread_ms = 0;  // distance of the quartiles
};

Time measure(const std::function<void()>& work, at::Device device);

/// On a GPU: `work` captured as a graph, its replays timed: without the host's time to launch it.
Time measure_graph(const std::function<void()>& work, at::Device device);

/// Rates of this machine that bound every op: what a copy and a square matrix product reach.
struct Bound {
  double gb_per_s = 0;
  double tflop_per_s = 0;
};

/// Measured at the first call for a device and dtype.
const Bound& bound_of(at::Device device, at::ScalarType dtype);

}  // namespace osdn::bench
