// kernels/common/mma.cuh for a CPU: the same functions, fragments laid out as described there.
#pragma once

#include "tests/emulation/copies_and_barriers.h"
#include "tests/emulation/cuda_on_cpu.h"
#include "tests/emulation/race_check.h"
#include "tests/emulation/tensor_cores.h"

namespace osdn::kernels {

using emulation::lane;
using emulation::meet_warp;
using emulation::shared_memory;
using emulation::warp;

inline uint32_t dynamic_shared() { return 0; }
inline int copying_thread() { return static_cast<int>(threadIdx.x); }

template <typename T>
T read_shared_as(uint32_t address) {
  if (address % sizeof(T) != 0 || address + sizeof(T) > emulation::kSharedBytes)
    emulation::fail("shared memory at byte " + std::to_string(address));
  T value;
  std::memcpy(&value, shared_memory + address, sizeof(T));
  return value;
}
template <typename T>
void write_shared_as(uint32_t address, const T& value) {
  if (address % sizeof(T) != 0 || address + sizeof(T) > emulation::kSharedBytes)
    emulation::fail("shared memory at byte " + std::to_string(address));
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

inline void mma_bf16(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::mma(acc, a, b0, b1, emulation::Format::kBf16);
}
inline void mma_fp16(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::mma(acc, a, b0, b1, emulation::Format::kFp16);
}
inline void mma_tf32(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::mma(acc, a, b0, b1, emulation::Format::kTf32);
}

inline void copy_async_16(uint32_t target, const void* source, bool valid) {
  emulation::copy_async(target, source, 16, valid);
}
inline void copy_async_4(uint32_t target, const void* source, bool valid) {
  emulation::copy_async(target, source, 4, valid);
}
inline void copy_async_commit() { emulation::races::commit_copies(); }
template <int Pending>
void copy_async_wait() {
  emulation::races::wait_for_copies(Pending);
}

inline void prefetch_line(const void*) {}
inline float exp2_approx(float x) {
  const float out = std::exp2(x);
  return std::fpclassify(out) == FP_SUBNORMAL ? 0.0f : out;
}
inline float reciprocal(float x) { return 1.0f / x; }
inline float2 load_pair_if(bool valid, const float* source) {
  return valid ? make_float2(source[0], source[1]) : make_float2(0.0f, 0.0f);
}
inline uint32_t load_pair_if(bool valid, const __nv_bfloat16* source) {
  return valid ? *reinterpret_cast<const uint32_t*>(source) : 0u;
}

}  // namespace osdn::kernels
