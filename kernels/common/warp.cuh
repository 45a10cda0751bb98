// A warp as one: sums and vector loads of a lane's share of a row.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/vector_store.cuh"

namespace osdn::kernels {

constexpr int kWarpSize = 32;

/// Sum over the warp, the same value and bits in every lane.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

/// The same in fixed point with 2^-26 as unit, in one instruction: for |sum| below 32 and lanes' shares
/// likewise.
__device__ inline float warp_sum_fixed(float value) {
  constexpr float kUnits = 67108864.0f;
  return static_cast<float>(__reduce_add_sync(0xffffffffu, __float2int_rn(value * kUnits))) * (1.0f / kUnits);
}

/// `Count` (1, 2, 4 or 8) neighbouring numbers as they lie in memory, aligned to all of them or to 16 bytes.
template <typename T, int Count>
struct Row;

template <int Count>
struct alignas(Count < 4 ? Count * 4 : 16) Row<float, Count> {
  float value[Count];

  __device__ void unpack(float (&out)[Count]) const {
#pragma unroll
    for (int i = 0; i < Count; ++i) out[i] = value[i];
  }
  __device__ void pack(const float (&in)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) value[i] = in[i];
  }
};

template <int Count>
struct alignas(Count < 8 ? Count * 2 : 16) Row<__nv_bfloat16, Count> {
  uint32_t pair[Count / 2];

  __device__ void unpack(float (&out)[Count]) const {
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) {
      out[2 * i] = __uint_as_float(pair[i] << 16);
      out[2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000u);
    }
  }
  __device__ void pack(const float (&in)[Count]) {
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
      pair[i] = reinterpret_cast<const uint32_t&>(both);
    }
  }
};

template <>
struct Row<__nv_bfloat16, 1> {
  __nv_bfloat16 value;

  __device__ void unpack(float (&out)[1]) const { out[0] = __bfloat162float(value); }
  __device__ void pack(const float (&in)[1]) { value = __float2bfloat16_rn(in[0]); }
};

template <typename T, int Count>
__device__ Row<T, Count> load_row(const T* source) {
  return *reinterpret_cast<const Row<T, Count>*>(source);
}

/// One instruction for up to 16 bytes.
template <typename T, int Count>
__device__ void store_row(T* target, const float (&values)[Count], bool valid) {
  using Words = Row<T, Count>;
  union {
    Words row;
    uint32_t words[(sizeof(Words) + 3) / 4];
  } moved;
  moved.row.pack(values);
  if (!valid) return;
  if constexpr (sizeof(Words) < 8) {
    *reinterpret_cast<Words*>(target) = moved.row;
  } else if constexpr (sizeof(Words) == 8) {
    store_words(target, moved.words[0], moved.words[1]);
  } else {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Words)); i += 16)
      store_words(reinterpret_cast<char*>(target) + i, moved.words[i / 4], moved.words[i / 4 + 1],
                  moved.words[i / 4 + 2], moved.words[i / 4 + 3]);
  }
}

}  // namespace osdn::kernels
