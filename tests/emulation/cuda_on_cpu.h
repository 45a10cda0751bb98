// Device code of kernels/ as C++ for a CPU, so that its arithmetic, indices and synchronisation are tested
// where there is no GPU. Every thread of a block is a fiber; operations of a warp and barriers are places
// where fibers meet. Included before everything else in the sources of the kernels; the instructions that
// kernels/common writes as assembly are in kernels/common beside this file, which stands first on the include
// path.
//
// Copies and products are done when they are queued and threads take turns: missing waits and races do not
// show in the numbers, race_check.h finds them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
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
#define __shared__ static  // blocks run one after the other
#define __launch_bounds__(...)
#define __grid_constant__

#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct EmulatedIndex {
  unsigned x, y, z;
};
extern EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

using std::max;
using std::min;

namespace osdn::emulation {

constexpr int kSharedBytes = 232448;  // of a block, compute capability 9.0
extern unsigned char shared_memory[kSharedBytes];
/// What a block may have of it: less on other devices.
inline int shared_limit = kSharedBytes;

/// What the lanes of a warp lay out for each other.
struct Warp {
  uint64_t values[32];
};
Warp& warp();
inline int lane() { return static_cast<int>(threadIdx.x % 32); }

/// Return once all lanes of the warp have called it: at an instruction, which orders no memory; at a barrier.
void meet_warp();
void synchronize_warp();
/// Returns once all threads of the block that have not ended have called it.
void meet_block();
/// `threads` threads of the block at its barrier number `barrier`.
void meet_at(int barrier, int threads);
/// Returns once `counter` is no longer `value`. `what` and `number` tell what is waited for.
void wait_while(const uint64_t& counter, uint64_t value, const char* what, int number);
/// Ends the launch as a KernelFault.
[[noreturn]] void fail(const std::string& why);

/// Tells of a launch of `kernel` before its first block.
void begin_launch(const void* kernel);
/// Runs `body` in `threads` fibers, a multiple of 32.
void run_block(const std::function<void()>& body, int threads);

/// The value that lane `from` passes.
template <typename T>
T exchange(T value, int from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  std::memcpy(&warp().values[lane()], &value, sizeof(T));
  meet_warp();
  T result;
  std::memcpy(&result, &warp().values[from], sizeof(T));
  meet_warp();
  return result;
}

/// `merge` over what the lanes pass.
template <typename T, typename Merge>
T reduce(T value, const Merge& merge) {
  std::memcpy(&warp().values[lane()], &value, sizeof(T));
  meet_warp();
  std::memcpy(&value, &warp().values[0], sizeof(T));
  for (int i = 1; i < 32; ++i) {
    T other;
    std::memcpy(&other, &warp().values[i], sizeof(T));
    value = merge(value, other);
  }
  meet_warp();
  return value;
}

}  // namespace osdn::emulation

inline void __syncthreads() { osdn::emulation::meet_block(); }
inline void __syncwarp(unsigned = 0xffffffffu) { osdn::emulation::synchronize_warp(); }

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
  return osdn::emulation::reduce(value, [](unsigned a, unsigned b) { return std::max(a, b); });
}
template <typename T>
T __reduce_add_sync(unsigned, T value) {
  static_assert(std::is_integral_v<T> && sizeof(T) == 4);
  return osdn::emulation::reduce(
      value, [](T a, T b) { return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); });
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
inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
template <typename T>
T __ldg(const T* source) {
  return *source;
}
template <typename T>
T __ldcs(const T* source) {
  return *source;
}
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
