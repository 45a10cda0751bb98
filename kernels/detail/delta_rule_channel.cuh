// What the passes with a decay a key channel share on the device.
#pragma once

#include <algorithm>

#include "kernels/detail/delta_rule_chunk.cuh"
#include "kernels/detail/delta_rule_launch.h"

namespace osdn::kernels {

constexpr int kSubBlock = 16;  // tokens between anchors
constexpr int kSubBlocks = kChunk / kSubBlock;

/// Smaller log-decays count as this one: their factor is 0 in fp32 all the same, and sums keep their digits.
constexpr float kSmallestChannelDecay = -104.0f;
constexpr uint32_t kSmallestChannelDecayPair = 0xc2d0c2d0;  // twice, as bf16

/// One anchor in the middle of a sub-block serves its rows and columns while no channel decays by more than
/// this over either half of it: factors stay below e^44, far inside the range of bf16.
constexpr float kLargestAnchoredExponent = 44.0f;

/// A pass over those key channels that `in.shape.key_size` counts and that its pointers begin with: all, or a
/// part of more than kDeltaRuleNarrowKeySize.
template <class Args>
struct ChannelPart : Args {
  int row_size;     // numbers from a value head to the next in a [N, HV, K]
  int padded_size;  // KP of all channels
};

/// The part of `args` with the channels from `first` (0 or kDeltaRuleNarrowKeySize) on; of arrays that only
/// `Args` knows its caller moves the pointers.
template <class Args>
ChannelPart<Args> channel_part(const Args& args, int first) {
  const int key_size = args.in.shape.key_size;
  ChannelPart<Args> part{args, key_size, delta_rule_padded_key_size(key_size)};
  part.in.shape.key_size = std::min(key_size - first, kDeltaRuleNarrowKeySize);
  part.in.q.data += first;
  part.in.k.data += first;
  if (part.in.write_key.data != nullptr) part.in.write_key.data += first;
  part.log_decay = static_cast<const char*>(args.log_decay) + first * (args.bf16_log_decay ? 2 : 4);
  return part;
}

/// The chunk and value head of a block, sequences side by side as the scans go through them where all have
/// equally many chunks: what one pass has left in the L2 cache is then what the next one begins with.
__device__ inline int64_t slot_of_block(const DeltaRuleShape& shape, unsigned block) {
  const auto heads = static_cast<unsigned>(shape.num_value_heads);
  const auto sequences = static_cast<unsigned>(shape.num_sequences);
  const auto chunks = static_cast<unsigned>(shape.num_chunks);
  if (chunks % sequences != 0) return block;
  const unsigned each = chunks / sequences;
  const unsigned step = block / heads / sequences;
  const unsigned chunk = block / heads % sequences * each + step;
  return static_cast<int64_t>(chunk) * heads + block % heads;
}

/// The place of a block of `grid_of_chunks`: the same order from the last chunks to the first, with which the
/// forward scan begins. Nothing to divide where the grid is (value heads, sequences, chunks of each).
__device__ inline ChunkPlace place_from_end(const DeltaRuleShape& shape) {
  const auto heads = static_cast<unsigned>(shape.num_value_heads);
  unsigned chunk;
  unsigned head;
  if (gridDim.x != heads) {
    chunk = blockIdx.x / heads;
    head = blockIdx.x % heads;
  } else {
    chunk = blockIdx.y * gridDim.z + (gridDim.z - 1 - blockIdx.z);
    head = blockIdx.x;
  }
  return place_of(shape, chunk, static_cast<int>(head));
}

inline dim3 grid_of_chunks(const DeltaRuleShape& shape) {
  constexpr int64_t kMost = 65535;  // of a grid's second and third dimension
  const int64_t each = shape.num_chunks / shape.num_sequences;
  if (each * shape.num_sequences != shape.num_chunks || each > kMost || shape.num_sequences > kMost)
    return {static_cast<unsigned>(shape.num_chunks * shape.num_value_heads)};
  return {static_cast<unsigned>(shape.num_value_heads), static_cast<unsigned>(shape.num_sequences),
          static_cast<unsigned>(each)};
}

/// A pair of bf16 times a pair of factors, rounded.
__device__ inline uint32_t scaled_pair(uint32_t pair, float low, float high) {
  const float2 x = unpack_bf16(pair);
  return pack_bf16(x.x * low, x.y * high);
}

/// Sum of the products of eight numbers.
__device__ inline float dot_of_pieces(const uint4& x, const uint4& y) {
  const uint32_t xs[4] = {x.x, x.y, x.z, x.w};
  const uint32_t ys[4] = {y.x, y.y, y.z, y.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 a = unpack_bf16(xs[i]);
    const float2 b = unpack_bf16(ys[i]);
    sum += a.x * b.x + a.y * b.y;
  }
  return sum;
}

/// Products of two pairs of bf16, rounded.
__device__ inline uint32_t multiply_pairs(uint32_t x, uint32_t y) {
  const __nv_bfloat162 out =
      __hmul2(reinterpret_cast<const __nv_bfloat162&>(x), reinterpret_cast<const __nv_bfloat162&>(y));
  return reinterpret_cast<const uint32_t&>(out);
}

/// The larger numbers of two pairs of bf16.
__device__ inline uint32_t larger_of_pairs(uint32_t x, uint32_t y) {
  const __nv_bfloat162 out =
      __hmax2(reinterpret_cast<const __nv_bfloat162&>(x), reinterpret_cast<const __nv_bfloat162&>(y));
  return reinterpret_cast<const uint32_t&>(out);
}

/// Where the log-decay of a channel at a row of the chunk lies.
template <class Args>
__device__ int64_t log_decay_at(const ChannelPart<Args>& part, const ChunkPlace& place, int row,
                                int channel) {
  return ((place.token + row) * part.in.shape.num_value_heads + place.head) * part.row_size + channel;
}

/// Two neighbouring numbers as `load_pair_if` loads them.
template <class Number>
using LoadedPair = decltype(load_pair_if(true, static_cast<const Number*>(nullptr)));

__device__ inline float2 as_floats(float2 pair) { return pair; }
__device__ inline float2 as_floats(uint32_t pair) { return unpack_bf16(pair); }

__device__ inline void store_pair(float* target, float2 pair) { *reinterpret_cast<float2*>(target) = pair; }
__device__ inline void store_pair(__nv_bfloat16* target, float2 pair) {
  *reinterpret_cast<uint32_t*>(target) = pack_bf16(pair.x, pair.y);
}

/// The log-decays, fp32 or bf16, of two neighbouring channels at a row of the chunk; 0 beyond the chunk and
/// the key.
template <class Log, class Args>
__device__ float2 log_decay_pair(const ChannelPart<Args>& part, const ChunkPlace& place, int row,
                                 int channel) {
  if (row >= place.rows || channel >= part.in.shape.key_size) return make_float2(0.0f, 0.0f);
  return as_floats(__ldg(reinterpret_cast<const LoadedPair<Log>*>(static_cast<const Log*>(part.log_decay) +
                                                                  log_decay_at(part, place, row, channel))));
}

}  // namespace osdn::kernels
