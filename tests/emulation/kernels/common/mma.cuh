// kernels/common/mma.cuh for a CPU: the same functions, fragments laid out as described there.
#pragma once

#include "tests/emulation/cuda_on_cpu.h"

namespace osdn::kernels {

using emulation::lane;
using emulation::meet_warp;
using emulation::shared_memory;
using emulation::warp;

inline uint32_t dynamic_shared() { return 0; }
inline int copying_thread() { return static_cast<int>(threadIdx.x); }

template <typename T>
T read_shared_as(uint32_t address) {
  if (address % sizeof(T) != 0 || address + sizeof(T) > emulation::kSharedBytes) std::abort();
  T value;
  std::memcpy(&value, shared_memory + address, sizeof(T));
  return value;
}
template <typename T>
void write_shared_as(uint32_t address, const T& value) {
  if (address % sizeof(T) != 0 || address + sizeof(T) > emulation::kSharedBytes) std::abort();
  std::memcpy(shared_memory + address, &value, sizeof(T));
}
inline float4 read_shared_4(uint32_t address) { return read_shared_as<float4>(address); }
inline float2 read_shared_2(uint32_t address) { return read_shared_as<float2>(address); }
inline float read_shared(uint32_t address) { return read_shared_as<float>(address); }
inline uint32_t read_shared_bits(uint32_t address) { return read_shared_as<uint32_t>(address); }
inline uint4 read_shared_piece(uint32_t address) { return read_shared_as<uint4>(address); }
inline void write_shared(uint32_t address, float value) { write_shared_as(address, value); }
inline void write_shared_2(uint32_t address, float x, float y) {
  write_shared_as(address, make_float2(x, y));
}
inline void write_shared_bits(uint32_t address, uint32_t bits) { write_shared_as(address, bits); }

inline uint32_t both(uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; }
inline uint16_t half_of(uint32_t pair, int which) {
  return static_cast<uint16_t>(which == 0 ? pair & 0xffffu : pair >> 16);
}
/// A 16-bit number, bf16 or fp16.
inline float number(uint16_t bits, bool is_half) {
  if (!is_half) return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  __half x;
  std::memcpy(&x, &bits, 2);
  return __half2float(x);
}

inline void load_blocks(uint32_t (&out)[4], uint32_t row_address) {
  warp().values[lane()] = row_address;
  meet_warp();
  for (int i = 0; i < 4; ++i)
    out[i] = read_shared_as<uint32_t>(warp().values[8 * i + lane() / 4] + lane() % 4 * 4);
  meet_warp();
}
inline void load_blocks_transposed(uint32_t (&out)[4], uint32_t row_address) {
  warp().values[lane()] = row_address;
  meet_warp();
  const auto at = [](int block, int row, int column) {
    return read_shared_as<uint16_t>(warp().values[8 * block + row] + column * 2);
  };
  for (int i = 0; i < 4; ++i)
    out[i] = both(at(i, lane() % 4 * 2, lane() / 4), at(i, lane() % 4 * 2 + 1, lane() / 4));
  meet_warp();
}
inline uint32_t transposed_block(uint32_t block) {
  warp().values[lane()] = block;
  meet_warp();
  const auto at = [](int row, int column) {
    return half_of(warp().values[row * 4 + column / 2], column & 1);
  };
  const uint32_t out = both(at(lane() % 4 * 2, lane() / 4), at(lane() % 4 * 2 + 1, lane() / 4));
  meet_warp();
  return out;
}

/// acc += a b, k = Depth: `left(row, k)` and `right(k, column)` read the fragments that all lanes laid out.
template <int Depth, typename Left, typename Right>
void add_products(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const Left& left,
                  const Right& right) {
  uint32_t(&own)[6] = warp().fragments[lane()];
  std::copy(a, a + 4, own);
  own[4] = b0;
  own[5] = b1;
  meet_warp();
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < Depth; ++k)
      acc[i] += left(lane() / 4 + (i >> 1) * 8, k) * right(k, lane() % 4 * 2 + (i & 1));
  meet_warp();
}
inline float a_of_warp(int row, int k, bool is_half) {
  return number(half_of(warp().fragments[(row & 7) * 4 + (k & 7) / 2][(row >> 3) + 2 * (k >> 3)], k & 1),
                is_half);
}
template <bool kHalf>
void mma_16_bit(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  add_products<16>(
      acc, a, b0, b1, [](int row, int k) { return a_of_warp(row, k, kHalf); },
      [](int k, int column) {
        return number(half_of(warp().fragments[column * 4 + (k & 7) / 2][4 + (k >> 3)], k & 1), kHalf);
      });
}
inline void mma_bf16(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16_bit<false>(acc, a, b0, b1);
}
inline void mma_fp16(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16_bit<true>(acc, a, b0, b1);
}
/// What the tensor cores read of a float.
inline float tf32(uint32_t bits) { return __uint_as_float(bits & 0xffffe000u); }
inline void mma_tf32(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  add_products<8>(
      acc, a, b0, b1,
      [](int row, int k) {
        return tf32(warp().fragments[(row & 7) * 4 + (k & 3)][(row >> 3) + 2 * (k >> 2)]);
      },
      [](int k, int column) { return tf32(warp().fragments[column * 4 + (k & 3)][4 + (k >> 2)]); });
}

inline void copy_async_16(uint32_t target, const void* source, bool valid) {
  uint4 piece = {};
  if (valid && reinterpret_cast<uintptr_t>(source) % 16 != 0) std::abort();
  if (valid) std::memcpy(&piece, source, 16);
  write_shared_as(target, piece);
}
inline void copy_async_4(uint32_t target, const void* source, bool valid) {
  uint32_t bits = 0;
  if (valid) std::memcpy(&bits, source, 4);
  write_shared_as(target, bits);
}
inline void copy_async_commit() {}
template <int Pending>
void copy_async_wait() {}

inline float exp2_approx(float x) {
  const float out = std::exp2(x);
  return std::fpclassify(out) == FP_SUBNORMAL ? 0.0f : out;
}
inline float reciprocal(float x) { return 1.0f / x; }
inline float2 load_pair_if(bool valid, const float* source) {
  return valid ? make_float2(source[0], source[1]) : make_float2(0.0f, 0.0f);
}

}  // namespace osdn::kernels
