// What fragments (common/mma.cuh) are made of: two 16-bit numbers in a register, and products nearly as exact
// as fp32.
#pragma once

#include "kernels/common/mma.cuh"

namespace osdn::kernels {

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

/// A number in two parts of which tensor cores read the tf32 bits: the number itself, and what they leave of
/// it. Together 21 bits or more.
struct SplitTf32 {
  uint32_t high;
  uint32_t low;

  __device__ explicit SplitTf32(float x) {
    high = __float_as_uint(x);
    low = __float_as_uint(x - __uint_as_float(high & 0xffffe000u));
  }
};

/// acc -= a b for m16n8k8, nearly as exact as fp32. `a`: bits of (g, t), (g+8, t), (g, t+4), (g+8, t+4); b0:
/// (k = t, n = g), b1: (t+4, g).
__device__ inline void subtract_mma_fp32(float (&acc)[4], const uint32_t (&a)[4], float b0, float b1) {
  uint32_t high[4];
  uint32_t low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const SplitTf32 parts(__uint_as_float(a[i]));
    high[i] = parts.high;
    low[i] = parts.low;
  }
  const SplitTf32 first(b0);
  const SplitTf32 second(b1);
  const auto negated = [](uint32_t x) { return __float_as_uint(-__uint_as_float(x)); };
  mma_tf32(acc, low, negated(first.high), negated(second.high));
  mma_tf32(acc, high, negated(first.low), negated(second.low));
  mma_tf32(acc, high, negated(first.high), negated(second.high));
}

}  // namespace osdn::kernels
