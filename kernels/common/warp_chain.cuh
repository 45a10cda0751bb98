// A warp that works through one sequence of one head, token after token: lane l holds channels l, l + 32, ...
#pragma once

#include <cstdint>

namespace osdn::kernels {

constexpr int kWarpSize = 32;

/// Tokens loaded ahead of the one in work: hides the latency of memory behind the chain of dependent steps.
constexpr int kPrefetch = 4;

/// Sum over the warp, the same value and bits in every lane.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

}  // namespace osdn::kernels
