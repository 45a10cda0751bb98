// What the scan over chunks and its reverse share: every warp owns 16 value channels, and of the transposed
// state the rows of those channels, in registers from the first chunk to the last. All products are taken
// transposed (value channels down), so that a warp never needs what another one holds.
#pragma once

#include "kernels/detail/delta_rule_chunk.cuh"
#include "kernels/detail/delta_rule_launch.h"

namespace osdn::kernels {

constexpr int kWarpChannels = 16;
constexpr float kLargestHalf = 3.0e4f;  // stored in fp16 without a scale

/// The tiles of one chunk in shared memory. `value` holds V in forward, dO in the reverse scan.
template <int KP, int Warps, Decay kDecay>
struct ScanStage {
  static constexpr int kValues = Warps * kWarpChannels;
  static constexpr int kKeyBytes = kChunk * KP * 2;
  static constexpr int kValueBytes = kChunk * kValues * 2;
  static constexpr int kSolveBytes = 3 * TriangleTile::kBytes;
  static constexpr int kVectorsBytes = 3 * kVectorBytes + (kDecay == Decay::kScalar    ? 2 * kVectorBytes
                                                           : kDecay == Decay::kChannel ? KP * 4
                                                                                       : 0);

  static constexpr int bytes(bool own_write_key) {
    return (own_write_key ? 3 : 2) * kKeyBytes + kValueBytes + kSolveBytes + kVectorsBytes;
  }

  RowTile<KP> q, k, w;
  RowTile<kValues> value;
  TriangleTile inverse, remainder, pairs;  // Y in two parts; q . w
  uint32_t q_rstd, k_rstd, beta;           // addresses of [64] floats
  uint32_t write_scale;                    // of [64] floats or 0: 1
  uint32_t decay;                          // scalar: of exp G, exp(G_C - G) [2, 64]; channel: exp(G_C) [KP]

  __device__ ScanStage(uint32_t base, bool own_write_key)
      : q{base},
        k{base + kKeyBytes},
        w{own_write_key ? base + 2 * kKeyBytes + kValueBytes + kSolveBytes + kVectorsBytes
                        : base + kKeyBytes},
        value{base + 2 * kKeyBytes},
        inverse{base + 2 * kKeyBytes + kValueBytes},
        remainder{inverse.base + TriangleTile::kBytes},
        pairs{remainder.base + TriangleTile::kBytes},
        q_rstd(base + 2 * kKeyBytes + kValueBytes + kSolveBytes),
        k_rstd(q_rstd + kVectorBytes),
        beta(k_rstd + kVectorBytes),
        write_scale(own_write_key ? 0 : k_rstd),
        decay(beta + kVectorBytes) {}

  /// exp G of two columns, and exp(G_C - G); 1 where the decay is not by token.
  __device__ float2 from_start_pair(int block, int lane) const {
    return kDecay == Decay::kScalar ? column_pair(decay, block, lane) : make_float2(1.0f, 1.0f);
  }
  __device__ float2 to_end_pair(int block, int lane) const {
    return kDecay == Decay::kScalar ? column_pair(decay + kVectorBytes, block, lane)
                                    : make_float2(1.0f, 1.0f);
  }
  /// What the chunk leaves of the state, for key channels 2t, 2t+1 of block `block`.
  __device__ float2 whole_pair(int block, int lane) const {
    if constexpr (kDecay == Decay::kChannel) return column_pair(decay, block, lane);
    const float whole = kDecay == Decay::kScalar ? read_shared(decay + (kChunk - 1) * 4) : 1.0f;
    return make_float2(whole, whole);
  }

  /// Factors of the write key as it lies in its tile, for columns 2t, 2t+1 of block `block`.
  __device__ float2 write_pair(int block, int lane) const {
    return write_scale == 0 ? make_float2(1.0f, 1.0f) : column_pair(write_scale, block, lane);
  }

  __device__ void copy_async(const DeltaRuleInputs& in, const DeltaRulePrepared& prepared,
                             const DeltaRuleRows& values, const float* chunk_decay, const ChunkPlace& place,
                             int first_channel) const {
    const DeltaRuleShape& shape = in.shape;
    copy_rows_async<kChunk>(q, rows_at(in.q, place.token, place.key_head), in.q.token_stride, place.rows,
                            shape.key_size);
    copy_rows_async<kChunk>(k, rows_at(in.k, place.token, place.key_head), in.k.token_stride, place.rows,
                            shape.key_size);
    copy_rows_async<kChunk>(value, rows_at(values, place.token, place.head) + first_channel,
                            values.token_stride, place.rows, shape.value_size - first_channel);
    if (write_scale == 0)
      copy_rows_async<kChunk>(w, rows_at(in.write_key, place.token, place.head), in.write_key.token_stride,
                              place.rows, shape.key_size);
    const int64_t slot = place.slot(shape);
    copy_flat_async(inverse.base, prepared.inverse + slot * (2 * kDeltaRuleTriangle),
                    2 * TriangleTile::kBytes);
    copy_flat_async(pairs.base, prepared.pairs + slot * kDeltaRuleTriangle, TriangleTile::kBytes);
    const int64_t key_row = place.token * shape.num_key_heads + place.key_head;
    copy_vector_async(q_rstd, prepared.q_rstd + key_row, shape.num_key_heads, place.rows, kChunk);
    copy_vector_async(k_rstd, prepared.k_rstd + key_row, shape.num_key_heads, place.rows, kChunk);
    copy_vector_async(beta, in.beta + place.token * shape.num_value_heads + place.head, shape.num_value_heads,
                      place.rows, kChunk);
    if constexpr (kDecay == Decay::kScalar)
      copy_flat_async(decay, prepared.gates + (slot * 3 + 1) * kChunk, 2 * kVectorBytes);
    if constexpr (kDecay == Decay::kChannel) copy_flat_async(decay, chunk_decay + slot * KP, KP * 4);
    copy_async_commit();
  }
};

/// This warp's 16 rows of a transposed state. value[n]: key channels 8n .. 8n+7.
template <int KP>
struct StateRows {
  float value[KP / 8][4];

  /// From or to a [K, V] state: lane (g, t) holds channels 8n + 2t, 8n + 2t + 1 of value channels g and g
  /// + 8.
  template <typename Visit>
  __device__ void for_each(const DeltaRuleShape& shape, int first_channel, int lane, const Visit& visit) {
#pragma unroll
    for (int n = 0; n < KP / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = n * 8 + (lane & 3) * 2 + (i & 1);
        const int channel = first_channel + (lane >> 2) + (i >> 1) * 8;
        if (key < shape.key_size && channel < shape.value_size)
          visit(value[n][i], static_cast<int64_t>(key) * shape.value_size + channel);
        else
          value[n][i] = 0.0f;
      }
    }
  }

  __device__ void load(const DeltaRuleShape& shape, const float* state, int first_channel, int lane) {
    if (state == nullptr) {
#pragma unroll
      for (int n = 0; n < KP / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) value[n][i] = 0.0f;
      return;
    }
    for_each(shape, first_channel, lane, [state](float& x, int64_t at) { x = state[at]; });
  }

  __device__ void store(const DeltaRuleShape& shape, float* state, int first_channel, int lane) {
    for_each(shape, first_channel, lane, [state](float& x, int64_t at) { state[at] = x; });
  }

  /// Times what a chunk leaves of it.
  template <class Stage>
  __device__ void decay(const Stage& stage, int lane) {
#pragma unroll
    for (int n = 0; n < KP / 8; ++n) {
      const float2 whole = stage.whole_pair(n, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) value[n][i] *= i & 1 ? whole.y : whole.x;
    }
  }

  /// Rounded, as A fragments: fragment k holds key channels 16k .. 16k+15.
  __device__ void round(uint32_t (&out)[KP / 16][4]) const {
#pragma unroll
    for (int k = 0; k < KP / 16; ++k) {
      out[k][0] = pack_bf16(value[2 * k][0], value[2 * k][1]);
      out[k][1] = pack_bf16(value[2 * k][2], value[2 * k][3]);
      out[k][2] = pack_bf16(value[2 * k + 1][0], value[2 * k + 1][1]);
      out[k][3] = pack_bf16(value[2 * k + 1][2], value[2 * k + 1][3]);
    }
  }
};

/// A fragments of 16 rows out to a matrix of 8x8 blocks with `8 * blocks` columns; the rows are block rows 2
/// warp and 2 warp + 1 of `target`.
template <int Count>
__device__ void store_blocks(__nv_bfloat16* target, const uint32_t (&fragments)[Count][4], int warp,
                             int lane) {
  auto* out = reinterpret_cast<uint32_t*>(target);
#pragma unroll
  for (int k = 0; k < Count; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out[((2 * warp + (i & 1)) * (2 * Count) + 2 * k + (i >> 1)) * 32 + lane] = fragments[k][i];
  }
}

/// out[n] += rows times the transposed rows of `tile`: one column a token.
template <int KP, class Tile>
__device__ void times_rows(float (&out)[kChunk / 8][4], const uint32_t (&rows)[KP / 16][4], const Tile& tile,
                           int lane) {
#pragma unroll
  for (int k = 0; k < KP / 16; ++k) {
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {
      uint32_t b[4];
      load_b_of_rows(b, tile, pair * 16, k * 16, lane);
      mma_bf16(out[2 * pair], rows[k], b[0], b[1]);
      mma_bf16(out[2 * pair + 1], rows[k], b[2], b[3]);
    }
  }
}

/// state += rows times `tile`, whose rows are tokens.
template <int KP>
__device__ void add_outer(StateRows<KP>& state, const uint32_t (&rows)[kChunk / 16][4],
                          const RowTile<KP>& tile, int lane) {
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
#pragma unroll
    for (int pair = 0; pair < KP / 16; ++pair) {
      uint32_t b[4];
      load_b_of_columns(b, tile, pair * 16, k * 16, lane);
      mma_bf16(state.value[2 * pair], rows[k], b[0], b[1]);
      mma_bf16(state.value[2 * pair + 1], rows[k], b[2], b[3]);
    }
  }
}

/// x times a factor a column.
template <typename Factor>
__device__ void scale_columns(float (&x)[kChunk / 8][4], const Factor& factor) {
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    const float2 f = factor(n);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] *= i & 1 ? f.y : f.x;
  }
}

/// A power of two that brings this warp's values below the limit of fp16: 1 unless they are beyond it.
__device__ inline float half_scale(float largest) {
  if (!__any_sync(0xffffffffu, largest > kLargestHalf)) return 1.0f;
  for (int distance = 16; distance > 0; distance /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  return isinf(largest) ? 1.0f : exp2f(-ceilf(log2f(largest / kLargestHalf)));
}

/// Accumulators of 16 rows and 64 columns, scaled by `factor(block)` (a pair of columns), as bf16 A
/// fragments.
template <typename Factor>
__device__ void round_scaled(uint32_t (&out)[kChunk / 16][4], const float (&x)[kChunk / 8][4],
                             const Factor& factor) {
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 f = factor(2 * k + half);
      out[k][2 * half] = pack_bf16(x[2 * k + half][0] * f.x, x[2 * k + half][1] * f.y);
      out[k][2 * half + 1] = pack_bf16(x[2 * k + half][2] * f.x, x[2 * k + half][3] * f.y);
    }
  }
}

}  // namespace osdn::kernels
