// The instructions of a warp that C++ has no words for: matrix products (mma.sync), the loads and copies that
// feed them (ldmatrix, movmatrix, cp.async), shared memory by address. Everything here runs from compute
// capability 8.0 on. tests/emulation has the same functions in C++ for a CPU.
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

/// Address of the shared memory that a launch asks for, aligned to 1024 bytes.
__device__ inline uint32_t dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  return shared_address(dynamic_shared_memory);
}

/// threadIdx.x, read anew: what copies derive from it is not kept in registers around a loop that needs them.
__device__ inline int copying_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
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

/// acc += a b for m16n8k8 with tf32 operands, the lowest 13 bits of a float unread; fragments as in
/// subtract_mma_fp32.
__device__ inline void mma_tf32(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

/// Brings 128 bytes of global memory to the L2 cache, for copies that have no room yet.
__device__ inline void prefetch_line(const void* source) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(source));
}

__device__ inline float4 read_shared_4(uint32_t address) {
  float4 out;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
               : "r"(address)
               : "memory");
  return out;
}

__device__ inline float2 read_shared_2(uint32_t address) {
  float2 out;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(out.x), "=f"(out.y) : "r"(address) : "memory");
  return out;
}

__device__ inline float read_shared(uint32_t address) {
  float out;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(out) : "r"(address) : "memory");
  return out;
}

__device__ inline uint32_t read_shared_bits(uint32_t address) {
  uint32_t out;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(out) : "r"(address) : "memory");
  return out;
}

__device__ inline void write_shared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ inline void write_shared_2(uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

__device__ inline void write_shared_bits(uint32_t address, uint32_t bits) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}

__device__ inline uint4 read_shared_piece(uint32_t address) {
  uint4 out;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "r"(address)
               : "memory");
  return out;
}

/// 2^x, 0 below the range of fp32.
__device__ inline float exp2_approx(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

__device__ inline float reciprocal(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

/// Two floats from global memory that does not change, zeros without a read when `valid` is false.
__device__ inline float2 load_pair_if(bool valid, const float* source) {
  float2 out;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.f32 %0, 0f00000000; mov.f32 %1, 0f00000000; "
      "@p ld.global.nc.v2.f32 {%0,%1}, [%2]; }"
      : "=f"(out.x), "=f"(out.y)
      : "l"(source), "r"(valid ? 1 : 0));
  return out;
}

/// The same of two neighbouring bf16, as they lie there.
__device__ inline uint32_t load_pair_if(bool valid, const __nv_bfloat16* source) {
  uint32_t out;
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1]; }"
               : "=r"(out)
               : "l"(source), "r"(valid ? 1 : 0));
  return out;
}

}  // namespace osdn::kernels
