// Warpgroup matrix products of compute capability 9.0 (wgmma): the A operand and the sums in registers of
// four warps, the B operand in shared memory. Fragments are those of common/mma.cuh: warp w of the group has
// rows 16w .. 16w+15, and `acc[n]` are its columns 8n .. 8n+7.
//
// Calls are asynchronous. Order of use: `wgmma_fence` once registers are ready, products, `wgmma_commit`, and
// `wgmma_wait` before their sums are read or their A fragments changed.
#pragma once

#include "kernels/common/tile.cuh"

namespace osdn::kernels {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define OSDN_WGMMA 1
#else
#define OSDN_WGMMA 0
#endif

/// Shared memory written by this thread's copies and stores becomes visible to the tensor cores; then a
/// barrier.
__device__ inline void wgmma_publish_shared() {
#if OSDN_WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ inline void wgmma_fence() {
#if OSDN_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ inline void wgmma_commit() {
#if OSDN_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/// All but the last `Pending` groups have ended.
template <int Pending>
__device__ inline void wgmma_wait() {
#if OSDN_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#endif
}

/// Keeps the compiler from moving uses of sums across the calls around it.
template <int Blocks>
__device__ inline void wgmma_pin(float (&acc)[Blocks][4]) {
#pragma unroll
  for (int n = 0; n < Blocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(acc[n][i])::"memory");
}

/// What the tensor cores need to know of a B operand.
struct WgmmaOperand {
  uint64_t bits;

  /// Of a tile aligned to 1024 bytes; strides in bytes as the instruction set defines them for the layout.
  __device__ WgmmaOperand(uint32_t address, uint32_t leading_stride, uint32_t stride)
      : bits(static_cast<uint64_t>((address & 0x3ffffu) >> 4) |
             static_cast<uint64_t>(leading_stride >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
             uint64_t{1} << 62) {}  // swizzled in rows of 128 bytes
};

/// Columns are the 64 rows of a tile, k its channels k0 .. k0+15 (not transposed).
template <int Columns>
__device__ WgmmaOperand wgmma_rows(const RowTile<Columns>& tile, int k0) {
  return {tile.base + (k0 >> 6) * RowTile<Columns>::kPanelBytes + (k0 & 63) * 2, 16, 1024};
}

/// Columns are the channels of a tile, k its rows k0 .. k0+15 (transposed).
template <int Columns>
__device__ WgmmaOperand wgmma_columns(const RowTile<Columns>& tile, int k0) {
  return {tile.base + k0 * 128, RowTile<Columns>::kPanelBytes, 1024};
}

namespace wgmma_detail {

template <int N, bool kTransposed, bool kHalf>
struct Product;

#if OSDN_WGMMA
#define OSDN_WGMMA_PRODUCT(N, TYPE, HALF, REGISTERS, A0, A1, A2, A3, B, TRANSPOSED, ...)                    \
  template <bool kTransposed>                                                                               \
  struct Product<N, kTransposed, HALF> {                                                                    \
    __device__ static void run(float (&acc)[N / 8][4], const uint32_t (&a)[4], uint64_t b) {                \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS "}, {" A0 \
                   "," A1 "," A2 "," A3 "}, " B ", 1, 1, 1, " TRANSPOSED ";"                                \
                   : __VA_ARGS__                                                                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0));         \
    }                                                                                                       \
  };
#define OSDN_WGMMA_ROW(n) "+f"(acc[n][0]), "+f"(acc[n][1]), "+f"(acc[n][2]), "+f"(acc[n][3])
OSDN_WGMMA_PRODUCT(64, "bf16", false,
                   "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%"
                   "24,%25,%26,%27,%28,%29,%30,%31",
                   "%32", "%33", "%34", "%35", "%36", "%37", OSDN_WGMMA_ROW(0), OSDN_WGMMA_ROW(1),
                   OSDN_WGMMA_ROW(2), OSDN_WGMMA_ROW(3), OSDN_WGMMA_ROW(4), OSDN_WGMMA_ROW(5),
                   OSDN_WGMMA_ROW(6), OSDN_WGMMA_ROW(7))
OSDN_WGMMA_PRODUCT(64, "f16", true,
                   "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%"
                   "24,%25,%26,%27,%28,%29,%30,%31",
                   "%32", "%33", "%34", "%35", "%36", "%37", OSDN_WGMMA_ROW(0), OSDN_WGMMA_ROW(1),
                   OSDN_WGMMA_ROW(2), OSDN_WGMMA_ROW(3), OSDN_WGMMA_ROW(4), OSDN_WGMMA_ROW(5),
                   OSDN_WGMMA_ROW(6), OSDN_WGMMA_ROW(7))
OSDN_WGMMA_PRODUCT(128, "bf16", false,
                   "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%"
                   "24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%"
                   "46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63",
                   "%64", "%65", "%66", "%67", "%68", "%69", OSDN_WGMMA_ROW(0), OSDN_WGMMA_ROW(1),
                   OSDN_WGMMA_ROW(2), OSDN_WGMMA_ROW(3), OSDN_WGMMA_ROW(4), OSDN_WGMMA_ROW(5),
                   OSDN_WGMMA_ROW(6), OSDN_WGMMA_ROW(7), OSDN_WGMMA_ROW(8), OSDN_WGMMA_ROW(9),
                   OSDN_WGMMA_ROW(10), OSDN_WGMMA_ROW(11), OSDN_WGMMA_ROW(12), OSDN_WGMMA_ROW(13),
                   OSDN_WGMMA_ROW(14), OSDN_WGMMA_ROW(15))
#undef OSDN_WGMMA_ROW
#undef OSDN_WGMMA_PRODUCT
#else
template <int N, bool kTransposed, bool kHalf>
struct Product {
  __device__ static void run(float (&)[N / 8][4], const uint32_t (&)[4], uint64_t) { __trap(); }
};
#endif

}  // namespace wgmma_detail

/// acc += a b with bf16 operands; with fp16 operands.
template <int N, bool kTransposed>
__device__ void wgmma_bf16(float (&acc)[N / 8][4], const uint32_t (&a)[4], const WgmmaOperand& b) {
  wgmma_detail::Product<N, kTransposed, false>::run(acc, a, b.bits);
}
template <int N, bool kTransposed>
__device__ void wgmma_fp16(float (&acc)[N / 8][4], const uint32_t (&a)[4], const WgmmaOperand& b) {
  wgmma_detail::Product<N, kTransposed, true>::run(acc, a, b.bits);
}

}  // namespace osdn::kernels
