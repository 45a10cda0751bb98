// kernels/common/wgmma_instructions.cuh for a CPU: products are done when they are queued; the four warps of
// a group need nothing of each other but shared memory.
#pragma once

#include "kernels/common/mma.cuh"

#define OSDN_WGMMA 1

namespace osdn::kernels {

inline void wgmma_publish_shared() {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int Pending>
void wgmma_wait() {}
template <int Registers>
void take_registers() {}
template <int Registers>
void give_registers() {}
template <int Blocks>
void wgmma_pin(float (&)[Blocks][4]) {}

namespace wgmma_detail {

/// Element (row or column `n`, `k`) of the operand that `bits` describe (WgmmaOperand).
inline float element(uint64_t bits, int n, int k, bool transposed, bool is_half) {
  const auto field = [bits](int first) { return static_cast<uint32_t>(bits >> first & 0x3fffu) << 4; };
  const uint32_t leading = field(16);
  const uint32_t stride = field(32);
  uint32_t at = field(0);
  if (bits >> 62 == 1) {  // rows of 128 bytes, swizzled
    at += transposed ? (n >> 6) * leading + (k >> 3) * stride + (k & 7) * 128 + (n & 63) * 2
                     : (n >> 3) * stride + (n & 7) * 128 + k * 2;
    at ^= (at >> 7 & 7) << 4;
  } else {  // 8x8 blocks
    if (!transposed) std::abort();
    at += (n >> 3) * stride + (k >> 3) * leading + (k & 7) * 16 + (n & 7) * 2;
  }
  return number(read_shared_as<uint16_t>(at), is_half);
}

template <int N, bool kTransposed, bool kHalf>
struct Product {
  static void run(float (&acc)[N / 8][4], const uint32_t (&a)[4], uint64_t b) {
    std::copy(a, a + 4, warp().fragments[lane()]);
    meet_warp();
    for (int n = 0; n < N / 8; ++n)
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k)
          acc[n][i] += a_of_warp(lane() / 4 + (i >> 1) * 8, k, kHalf) *
                       element(b, n * 8 + lane() % 4 * 2 + (i & 1), k, kTransposed, kHalf);
    meet_warp();
  }
};

template <int N, bool kTransposedA>
struct SharedProduct {
  static void run(float (&acc)[N / 8][4], uint64_t a, uint64_t b) {
    const int row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane() / 4;
    for (int n = 0; n < N / 8; ++n)
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k)
          acc[n][i] += element(a, row + (i >> 1) * 8, k, kTransposedA, false) *
                       element(b, n * 8 + lane() % 4 * 2 + (i & 1), k, true, false);
  }
};

}  // namespace wgmma_detail
}  // namespace osdn::kernels
