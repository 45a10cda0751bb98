// Activations in fp32 by the hardware's exponential and reciprocal: good to a few units in the last place of
// fp32, far below bf16's. Subnormal numbers count as 0.
#pragma once

namespace osdn::kernels {

__device__ inline float fast_exp(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2E));
  return y;
}

/// 1 / (1 + exp(-x)); 0 and 1 at the infinities.
__device__ inline float sigmoid(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + fast_exp(-x)));
  return y;
}

/// d silu(x) / dx, with s = sigmoid(x).
__device__ inline float silu_slope(float x, float s) { return s * fmaf(x, 1.0f - s, 1.0f); }

}  // namespace osdn::kernels
