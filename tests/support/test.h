// What a LibTorch test includes: LibTorch, then Catch2 with the clash over CHECK resolved, and comparisons by
// name.
#pragma once

// Merged with files that include Catch2 alone, CHECK may be there already: LibTorch's must not replace it.
#pragma push_macro("CHECK")
#include "tensor/torch.h"
#undef CHECK
#pragma pop_macro("CHECK")

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace osdn::test {

/// Relative root-mean-square error ||actual - expected|| / ||expected|| in float64; absolute where expected
/// is 0.
inline double relative_rms(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.detach().to(at::kCPU, at::kDouble);
  const at::Tensor e = expected.detach().to(at::kCPU, at::kDouble);
  const double norm = e.norm().item<double>();
  const double difference = (a - e).norm().item<double>();
  return norm > 0 ? difference / norm : difference;
}

/// Fails, naming the tensor and the error, unless shapes agree, all is finite and the relative RMS error is
/// in bound.
inline void check_close(const std::string& name, const at::Tensor& actual, const at::Tensor& expected,
                        double tolerance) {
  INFO(name);
  REQUIRE(actual.defined());
  REQUIRE(expected.defined());
  REQUIRE(actual.sizes() == expected.sizes());
  CHECK(at::isfinite(actual).all().item<bool>());
  const double error = relative_rms(actual, expected);
  INFO("relative RMS error " << error << ", allowed " << tolerance);
  CHECK(error <= tolerance);
}

/// Central finite differences of a scalar function with respect to one float64 tensor, element by element.
/// `function` must read `x` afresh at every call; cost: 2 * x.numel() calls.
inline at::Tensor finite_difference(const std::function<double()>& function, at::Tensor x,
                                    double step = 1e-6) {
  at::NoGradGuard no_grad;
  at::Tensor gradient = at::empty_like(x, at::MemoryFormat::Contiguous);
  double* values = x.data_ptr<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double saved = values[i];
    values[i] = saved + step;
    const double above = function();
    values[i] = saved - step;
    const double below = function();
    values[i] = saved;
    gradient.data_ptr<double>()[i] = (above - below) / (2 * step);
  }
  return gradient;
}

}  // namespace osdn::test
