// The benchmark harness: a file per op registers a function that makes its cases. Every case is checked
// before it is timed, and prints one JSON line (docs/contributing.md). Program: osdn_bench [op...].
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor/fwd.h"

namespace osdn::bench {

/// One measurement. `run` does the work once, on the current device, without synchronising.
struct Case {
  std::string shape;     // what a reader needs to repeat it, e.g. "N4096 H4 K64 V64"
  std::string pass;      // "forward", "forward+backward", ...
  at::ScalarType dtype;  // of the activations
  at::Device device = at::kCPU;
  double bytes = 0;               // moved by one run when everything is read and written once
  double flop = 0;                // floating-point operations of one run
  std::function<double()> error;  // relative error against the reference; run once, before the timing
  double tolerance = 0;           // largest error that is still timed
  std::function<void()> run;
};

/// Makes the cases for one device. Called once per device that this machine has.
using MakeCases = std::function<std::vector<Case>(at::Device device)>;

/// A static object of this type in <op>_bench.cpp adds the op to osdn_bench.
struct Registrar {
  Registrar(std::string op, MakeCases make);
};

/// ||actual - expected|| / ||expected|| in float64; the norm of the difference where expected is 0.
double relative_error(const at::Tensor& actual, const at::Tensor& expected);

/// Standard normal values from a fixed seed, cast to dtype: the same for every run and device.
at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype, at::Device device, uint64_t seed);

}  // namespace osdn::bench
