// Activations in fp32 by the fast exponential and division: good to a few units in the last place of fp32,
// far below bf16's.
#pragma once

namespace osdn::kernels {

/// 1 / (1 + exp(-x)); 0 and 1 at the infinities.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

/// d silu(x) / dx, with s = sigmoid(x).
__device__ inline float silu_slope(float x, float s) { return s * fmaf(x, 1.0f - s, 1.0f); }

}  // namespace osdn::kernels
