// What a benchmark is made of. A file per op in tests/bench registers a function that makes its cases; `osdn
// bench` runs them (run.h). Every case is checked before it is timed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor/fwd.h"

namespace osdn::bench {

/// One measurement. `run` does the work once, on the current device, without synchronising.
struct Case {
  std::string shape;      // what a reader needs to repeat it, e.g. "B16 T2048 H8 K128 V128"
  std::string gate;       // of the delta rule: "none", "scalar", "channel" or "channel fp32"; empty elsewhere
  std::string write_key;  // of the delta rule: "none", "given" or "scan"; empty elsewhere
  std::string pass;       // "forward", "forward+backward", ...
  at::ScalarType dtype;   // of the activations
  at::Device device = at::kCPU;
  double bytes = 0;               // moved by one run when everything is read and written once
  double flop = 0;                // floating-point operations of one run
  std::function<double()> error;  // relative error against the reference; run once, before the timing
  double tolerance = 0;           // largest error that is still timed
  std::function<void()> run;
  bool capturable = false;  // on a GPU, timed as a captured graph as well
};

/// Makes the cases for one device. Called once a device. Cases that are not run cost what this costs: large
/// inputs are better made by `error`.
using MakeCases = std::function<std::vector<Case>(at::Device device)>;

/// A static object of this type in <op>_bench.cpp adds the op to `osdn bench`.
struct Registrar {
  Registrar(std::string op, MakeCases make);
};

/// ||actual - expected|| / ||expected|| in float64; the norm of the difference where expected is 0.
double relative_error(const at::Tensor& actual, const at::Tensor& expected);

/// Standard normal values from a fixed seed, cast to dtype: the same for every run.
at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype, at::Device device, uint64_t seed);

}  // namespace osdn::bench
