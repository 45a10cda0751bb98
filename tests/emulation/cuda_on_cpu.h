// Device code of kernels/ as C++ for a CPU, so that its arithmetic, indices and synchronisation are tested
// where there is no GPU. Every thread of a block is a fiber; operations of a warp and barriers are places
// where fibers meet. Included before everything else in the sources of the kernels; the instructions that
// kernels/common writes as assembly are in kernels/common beside this file, which stands first on the include
// path.
//
// Copies are done when they are queued and warps take turns: missing waits and races are left to the GPU's
// tools.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include <cuda_runtime_api.h>

#undef __device__
#undef __host__
#undef __global__
#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#define __device__
#define __host__
#define __global__
#define __shared__
#define __launch_bounds__(...)
#define __grid_constant__

#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct EmulatedIndex {
  unsigned x, y, z;
};
extern EmulatedIndex threadIdx, blockIdx, blockDim;

using std::max;
using std::min;

namespace osdn::emulation {

constexpr int kSharedBytes = 232448;  // of a block, compute capability 9.0
extern unsigned char shared_memory[kSharedBytes];
/// What a block may have of it: less on other devices.
inline int shared_limit = kSharedBytes;

/// What the lanes of a warp lay out for each other.
struct Warp {
  uint32_t values[32];
  uint32_t fragments[32][6];
  int arrived = 0;
  uint64_t generation = 0;
};
Warp& warp();
inline int lane() { return static_cast<int>(threadIdx.x % 32); }

/// Returns once all lanes of the warp have called it; all threads of the block.
void meet_warp();
void meet_block();
/// Returns after every other fiber of the block has had its turn.
void let_others_run();

/// Runs `body` in `threads` fibers, a multiple of 32.
void run_block(const std::function<void()>& body, int threads);

/// The value that lane `from` passes.
template <typename T>
T exchange(T value, int from) {
  static_assert(sizeof(T) == 4);
  std::memcpy(&warp().values[lane()], &value, 4);
  meet_warp();
  T result;
  std::memcpy(&result, &warp().values[from], 4);
  meet_warp();
  return result;
}

}  // namespace osdn::emulation

inline void __syncthreads() { osdn::emulation::meet_block(); }
inline void __syncwarp(unsigned = 0xffffffffu) { osdn::emulation::meet_warp(); }

template <typename T>
T __shfl_sync(unsigned, T value, int from, int width = 32) {
  return osdn::emulation::exchange(value, osdn::emulation::lane() / width * width + (from & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return osdn::emulation::exchange(value, osdn::emulation::lane() ^ mask);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int distance, int width = 32) {
  const int lane = osdn::emulation::lane();
  return osdn::emulation::exchange(value, lane % width >= distance ? lane - distance : lane);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int distance, int width = 32) {
  const int lane = osdn::emulation::lane();
  return osdn::emulation::exchange(value, lane % width + distance < width ? lane + distance : lane);
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  for (int mask = 16; mask > 0; mask /= 2) value = std::max(value, __shfl_xor_sync(0, value, mask));
  return value;
}
inline int __reduce_add_sync(unsigned, int value) {
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0, value, mask);
  return value;
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  return static_cast<unsigned>(
      __reduce_add_sync(0, predicate != 0 ? static_cast<int>(1u << osdn::emulation::lane()) : 0));
}
inline int __all_sync(unsigned, int predicate) {
  return __reduce_max_sync(0, predicate != 0 ? 0u : 1u) == 0u ? 1 : 0;
}

inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
template <typename T>
T __ldg(const T* source) {
  return *source;
}
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
