// Small loops that compilers vectorise, for the CPU paths of the ops: sums in a fixed number of lanes, an
// exponential without branches or calls, and the activations built from it.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace osdn::ops::simd {

inline constexpr int64_t kLanes = 16;

/// Adds term(0) .. term(n - 1) in kLanes interleaved partial sums: a fixed order that does not forbid vector
/// code.
template <typename T, typename Term>
[[gnu::always_inline]] inline T sum(int64_t n, Term term) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  for (; i < n; ++i) lanes[i % kLanes] += term(i);
  T total = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += lanes[lane];
  return total;
}

[[gnu::always_inline]] inline double exp(double x) { return std::exp(x); }

/// exp to 1e-7 relative error; arguments are clamped to [-87.3, 88.3], NaN stays NaN.
[[gnu::always_inline]] inline float exp(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer kept in the low mantissa bits
  x = std::min(std::max(x, -87.3f), 88.3f);
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return p * std::bit_cast<float>(exponent);
}

template <typename T>
[[gnu::always_inline]] inline T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

template <typename T>
[[gnu::always_inline]] inline T silu(T x) {
  return x * sigmoid(x);
}

/// Derivative of silu.
template <typename T>
[[gnu::always_inline]] inline T silu_slope(T x) {
  const T s = sigmoid(x);
  return s * (T(1) + x * (T(1) - s));
}

}  // namespace osdn::ops::simd
