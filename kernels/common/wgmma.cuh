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

/// What the tensor cores need to know of an operand in shared memory.
class WgmmaOperand {
 public:
  /// Strides in bytes as the instruction set defines them for the layout; `swizzled`: in rows of 128 bytes,
  /// of a tile aligned to 1024 bytes. Otherwise 8x8 blocks as they are.
  __device__ WgmmaOperand(uint32_t address, uint32_t leading_stride, uint32_t stride, bool swizzled)
      : low_((address >> 4) + (leading_stride >> 4 << 16)),
        high_((stride >> 4) + (swizzled ? 1u << 30 : 0u)) {}

  /// The operand `bytes` further on.
  __device__ uint64_t at(uint32_t bytes) const {
    return static_cast<uint64_t>(high_) << 32 | static_cast<uint64_t>(low_ + (bytes >> 4));
  }

 private:
  uint32_t low_;
  uint32_t high_;
};

/// Rows of the operand are the 64 rows of a tile, k its channels (not transposed); channel k0 lies at
/// `wgmma_row_step(k0)`.
template <int Columns>
__device__ WgmmaOperand wgmma_rows(const RowTile<Columns>& tile) {
  return {tile.base, 16, 1024, true};
}
constexpr uint32_t wgmma_row_step(int k0) { return (k0 >> 6) * RowTile<64>::kPanelBytes + (k0 & 63) * 2; }

/// Rows of the operand are the channels of a tile from `first` (a multiple of 64) on, k its rows
/// (transposed). Row k0 lies at k0 * 128.
template <int Columns>
__device__ WgmmaOperand wgmma_columns(const RowTile<Columns>& tile, int first = 0) {
  return {tile.base + (first >> 6) * RowTile<Columns>::kPanelBytes, RowTile<Columns>::kPanelBytes, 1024,
          true};
}

/// The same of a tile of 8x8 blocks, `first` a multiple of 8. Row k0 lies at k0 * Columns * 2.
template <int Columns>
__device__ WgmmaOperand wgmma_columns(const BlockTile<Columns>& tile, int first = 0) {
  return {tile.base + (first >> 3) * 128, Columns / 8 * 128, 128, false};
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
/// Both operands in shared memory.
template <int N, bool kTransposedA>
struct SharedProduct;
#define OSDN_WGMMA_SHARED_PRODUCT(N, REGISTERS, A, B, TRANSPOSED, ...)                                   \
  template <bool kTransposedA>                                                                           \
  struct SharedProduct<N, kTransposedA> {                                                                \
    __device__ static void run(float (&acc)[N / 8][4], uint64_t a, uint64_t b) {                         \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGISTERS "}, " A ", " B \
                   ", 1, 1, 1, " TRANSPOSED ", 1;"                                                       \
                   : __VA_ARGS__                                                                         \
                   : "l"(a), "l"(b), "n"(kTransposedA ? 1 : 0));                                         \
    }                                                                                                    \
  };
OSDN_WGMMA_SHARED_PRODUCT(64,
                          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"
                          "%23,%24,%25,%26,%27,%28,%29,%30,%31",
                          "%32", "%33", "%34", OSDN_WGMMA_ROW(0), OSDN_WGMMA_ROW(1), OSDN_WGMMA_ROW(2),
                          OSDN_WGMMA_ROW(3), OSDN_WGMMA_ROW(4), OSDN_WGMMA_ROW(5), OSDN_WGMMA_ROW(6),
                          OSDN_WGMMA_ROW(7))
OSDN_WGMMA_SHARED_PRODUCT(
    128,
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%"
    "28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%"
    "54,%55,%56,%57,%58,%59,%60,%61,%62,%63",
    "%64", "%65", "%66", OSDN_WGMMA_ROW(0), OSDN_WGMMA_ROW(1), OSDN_WGMMA_ROW(2), OSDN_WGMMA_ROW(3),
    OSDN_WGMMA_ROW(4), OSDN_WGMMA_ROW(5), OSDN_WGMMA_ROW(6), OSDN_WGMMA_ROW(7), OSDN_WGMMA_ROW(8),
    OSDN_WGMMA_ROW(9), OSDN_WGMMA_ROW(10), OSDN_WGMMA_ROW(11), OSDN_WGMMA_ROW(12), OSDN_WGMMA_ROW(13),
    OSDN_WGMMA_ROW(14), OSDN_WGMMA_ROW(15))
#undef OSDN_WGMMA_SHARED_PRODUCT
#undef OSDN_WGMMA_ROW
#undef OSDN_WGMMA_PRODUCT
#else
template <int N, bool kTransposed, bool kHalf>
struct Product {
  __device__ static void run(float (&)[N / 8][4], const uint32_t (&)[4], uint64_t) { __trap(); }
};
template <int N, bool kTransposedA>
struct SharedProduct {
  __device__ static void run(float (&)[N / 8][4], uint64_t, uint64_t) { __trap(); }
};
#endif

}  // namespace wgmma_detail

/// acc += a b with bf16 operands; with fp16 operands. `b` is the operand's place (WgmmaOperand::at).
template <int N, bool kTransposed>
__device__ void wgmma_bf16(float (&acc)[N / 8][4], const uint32_t (&a)[4], uint64_t b) {
  wgmma_detail::Product<N, kTransposed, false>::run(acc, a, b);
}
template <int N, bool kTransposed>
__device__ void wgmma_fp16(float (&acc)[N / 8][4], const uint32_t (&a)[4], uint64_t b) {
  wgmma_detail::Product<N, kTransposed, true>::run(acc, a, b);
}

/// acc += a b, bf16, both in shared memory, b transposed.
template <int N, bool kTransposedA>
__device__ void wgmma_bf16(float (&acc)[N / 8][4], uint64_t a, uint64_t b) {
  wgmma_detail::SharedProduct<N, kTransposedA>::run(acc, a, b);
}

}  // namespace osdn::kernels
