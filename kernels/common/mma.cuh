// Warp-level matrix products and the copies that feed them: ldmatrix, mma.sync m16n8k16, cp.async, movmatrix.
// Everything here runs from compute capability 8.0 on.
//
// Fragments, for lane l with g = l / 4 and t = l % 4. An 8x8 block of 16-bit numbers is one register a lane:
// row g, columns 2t and 2t+1. Accumulators of m16n8 are four floats: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8,
// 2t+1); two of them side by side, rounded, are the A fragment (16 rows, k = 16) of the next product.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace osdn::kernels {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Four 8x8 blocks; lanes 8i .. 8i+7 give the shared addresses of the rows of block i.
__device__ inline void load_blocks(uint32_t (&out)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row_address)
               : "memory");
}

/// The same, each block transposed.
__device__ inline void load_blocks_transposed(uint32_t (&out)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row_address)
               : "memory");
}

/// The 8x8 block held by the warp, transposed.
__device__ inline uint32_t transposed_block(uint32_t block) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(block));
  return out;
}

/// acc += a b with bf16 operands; b0 and b1 are the halves k < 8 and k >= 8.
__device__ inline void mma_bf16(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// acc += a b with fp16 operands.
__device__ inline void mma_fp16(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// A number in two parts of tf32 that hold about 22 bits of it.
struct SplitTf32 {
  uint32_t high;
  uint32_t low;

  __device__ explicit SplitTf32(float x) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(low) : "f"(x - __uint_as_float(high)));
  }
};

__device__ inline void mma_tf32(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// acc += a b for m16n8k8, nearly as exact as fp32. `a`: (g, t), (g+8, t), (g, t+4), (g+8, t+4); b0: (k = t,
/// n = g), b1: (t+4, g).
__device__ inline void mma_fp32(float (&acc)[4], const float (&a)[4], float b0, float b1) {
  uint32_t high[4];
  uint32_t low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const SplitTf32 parts(a[i]);
    high[i] = parts.high;
    low[i] = parts.low;
  }
  const SplitTf32 first(b0);
  const SplitTf32 second(b1);
  mma_tf32(acc, low, first.high, second.high);
  mma_tf32(acc, high, first.low, second.low);
  mma_tf32(acc, high, first.high, second.high);
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ inline uint32_t pack_fp16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ inline float2 unpack_fp16(uint32_t pair) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

__device__ inline float2 unpack_bf16(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/// 16 bytes from global to shared memory without passing through registers; zeros when `valid` is false.
__device__ inline void copy_async_16(uint32_t target, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(valid ? 16 : 0)
               : "memory");
}

__device__ inline void copy_async_4(uint32_t target, const void* source, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(valid ? 4 : 0)
               : "memory");
}

__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Pending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace osdn::kernels
