// The instructions behind common/wgmma.cuh. tests/emulation has the same functions in C++ for a CPU.
#pragma once

#include <cstdint>

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

/// The warpgroup's threads go on with `Registers` (a multiple of 8) each, more or fewer than the threads of a
/// block started with. Called by all of its warps.
template <int Registers>
__device__ inline void take_registers() {
#if OSDN_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}
template <int Registers>
__device__ inline void give_registers() {
#if OSDN_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}

/// What load_blocks_transposed reads, to where it reads it.
__device__ inline void store_blocks_transposed(uint32_t row_address, const uint32_t (&blocks)[4]) {
#if OSDN_WGMMA
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row_address),
               "r"(blocks[0]), "r"(blocks[1]), "r"(blocks[2]), "r"(blocks[3])
               : "memory");
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

}  // namespace osdn::kernels
