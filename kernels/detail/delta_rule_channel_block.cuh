// Sixteen tokens of the gradient pass with a decay a key channel, by one warp in the layout of accumulators:
// lane (g, t) holds tokens g and g + 8, channels 2t and 2t + 1 of a block of eight. Sums of the log-decays,
// running sums over tokens, and the pairs within the sixteen tokens where no one anchor serves them.
#pragma once

#include "kernels/delta_rule_channel.h"
#include "kernels/detail/delta_rule_channel.cuh"

namespace osdn::kernels {

/// Numbers of tokens g (first two) and g + 8.
struct TokenPairs {
  float value[4];
};

/// Sums over tokens in place, from the first to each. Returns the sums over all sixteen, in every lane.
__device__ inline float2 running_sums(float (&x)[4], int lane) {
  const int g = lane >> 2;
#pragma unroll
  for (int distance = 1; distance < 8; distance *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_up_sync(0xffffffffu, x[i], distance * 4);
      if (g >= distance) x[i] += other;
    }
  }
  const int last = 28 + (lane & 3);
  float all[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float low = __shfl_sync(0xffffffffu, x[i], last);
    all[i] = low + __shfl_sync(0xffffffffu, x[2 + i], last);
    x[2 + i] += low;
  }
  return make_float2(all[0], all[1]);
}

/// The log-decays of tokens g and g + 8.
struct LogDecays {
  float2 value[2];

  template <class Log>
  __device__ LogDecays(const ChannelPart<DeltaRuleChannelGradientsArgs>& part, const Log* log_decay,
                       const ChunkPlace& place, int first_row, int channel, int lane) {
    const DeltaRuleShape& shape = part.in.shape;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8 + (lane >> 2);
      const bool valid = row < place.rows && channel < shape.key_size;
      value[half] = as_floats(load_pair_if(
          valid,
          log_decay + log_decay_at(part, place, 0, 0) +
              (static_cast<uint32_t>(row) * static_cast<uint32_t>(shape.num_value_heads * part.row_size) +
               channel)));
    }
  }
};

/// Logarithms to base 2 of the decays of sixteen tokens.
struct BlockLogs {
  float since_start[4];  // of tokens g and g + 8, their own included
  float2 total;
  float2 middle;  // until the eighth token, its own included

  __device__ BlockLogs(const LogDecays& decays, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      since_start[2 * half] = fmaxf(decays.value[half].x, kSmallestChannelDecay) * kLog2E;
      since_start[2 * half + 1] = fmaxf(decays.value[half].y, kSmallestChannelDecay) * kLog2E;
    }
    total = running_sums(since_start, lane);
    middle = make_float2(__shfl_sync(0xffffffffu, since_start[0], 28 + (lane & 3)),
                         __shfl_sync(0xffffffffu, since_start[1], 28 + (lane & 3)));
  }

  /// The anchors of rows and of columns: the middle for both, or the start and the end.
  __device__ float2 row_anchor(bool anchored) const { return anchored ? middle : make_float2(0.0f, 0.0f); }
  __device__ float2 column_anchor(bool anchored) const { return anchored ? middle : total; }

  /// Factors of the numbers in accumulators from the row anchor to their token, and from their token to the
  /// column anchor.
  __device__ float row_factor(int i, bool anchored) const {
    const float2 anchor = row_anchor(anchored);
    return exp2_approx(since_start[i] - (i & 1 ? anchor.y : anchor.x));
  }
  __device__ float column_factor(int i, bool anchored) const {
    const float2 anchor = column_anchor(anchored);
    return exp2_approx((i & 1 ? anchor.y : anchor.x) - since_start[i]);
  }
};

/// A number of the weights dP or dM.
__device__ inline float weight_at(const TriangleTile& weights, int row, int column) {
  const float2 pair =
      unpack_bf16(read_shared_bits(weights.piece(row, column & ~7) + ((column & 7) >> 1) * 4));
  return column & 1 ? pair.y : pair.x;
}

/// Normalised vectors of the chunk at two channels, from global memory; zeros beyond the chunk and the key.
template <class Log>
struct ChannelVectors {
  const ChannelPart<DeltaRuleChannelGradientsArgs>& part;
  const ChunkPlace& place;
  uint32_t q_rstd, k_rstd;  // addresses of [64] floats

  __device__ float2 pair(const DeltaRuleRows& rows, int head, int row, int channel, float factor) const {
    if (row >= place.rows || channel >= part.in.shape.key_size) return make_float2(0.0f, 0.0f);
    const float2 x = unpack_bf16(
        __ldg(reinterpret_cast<const uint32_t*>(rows_at(rows, place.token + row, head) + channel)));
    return make_float2(x.x * factor, x.y * factor);
  }
  __device__ float2 query(int row, int channel) const {
    return pair(part.in.q, place.key_head, row, channel, read_shared(q_rstd + row * 4));
  }
  __device__ float2 key(int row, int channel) const {
    return pair(part.in.k, place.key_head, row, channel, read_shared(k_rstd + row * 4));
  }
  __device__ float2 write(int row, int channel) const {
    return part.in.write_key.data == nullptr ? key(row, channel)
                                             : pair(part.in.write_key, place.head, row, channel, 1.0f);
  }
  __device__ float2 decay(int row, int channel) const {
    const float2 x = log_decay_pair<Log>(part, place, row, channel);
    return make_float2(exp2_approx(x.x * kLog2E), exp2_approx(x.y * kLog2E));
  }
};

/// Rows of dQ and dK from the earlier tokens of the same sixteen: sum_{s < r} dP_rs W_rs o w_s, and with dM.
template <class Log>
__device__ void add_earlier_pairs(TokenPairs& of_query, TokenPairs& of_key,
                                  const ChannelVectors<Log>& vectors, const TriangleTile (&weights)[2],
                                  int first_row, int channel, int lane) {
  float factors[4] = {};
  float2 decay = make_float2(0.0f, 0.0f);  // of token s + 1
#pragma unroll 1
  for (int s = kSubBlock - 1; s >= 0; --s) {
    const float2 w = vectors.write(first_row + s, channel);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = (lane >> 2) + (i >> 1) * 8;
      factors[i] = s == r ? 1.0f : factors[i] * (i & 1 ? decay.y : decay.x);
      if (s >= r) continue;
      const float written = factors[i] * (i & 1 ? w.y : w.x);
      of_query.value[i] += weight_at(weights[0], first_row + r, first_row + s) * written;
      of_key.value[i] += weight_at(weights[1], first_row + r, first_row + s) * written;
    }
    decay = vectors.decay(first_row + s, channel);
  }
}

/// Rows of dW from the later tokens of the same sixteen: sum_{r > s} W_rs o (dP_rs q_r + dM_rs k_r).
template <class Log>
__device__ void add_later_pairs(TokenPairs& of_write, const ChannelVectors<Log>& vectors,
                                const TriangleTile (&weights)[2], int first_row, int channel, int lane) {
  float factors[4] = {};
#pragma unroll 1
  for (int r = 0; r < kSubBlock; ++r) {
    const float2 q = vectors.query(first_row + r, channel);
    const float2 k = vectors.key(first_row + r, channel);
    const float2 decay = vectors.decay(first_row + r, channel);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int s = (lane >> 2) + (i >> 1) * 8;
      factors[i] = s == r ? 1.0f : factors[i] * (i & 1 ? decay.y : decay.x);
      if (r <= s) continue;
      const float read = weight_at(weights[0], first_row + r, first_row + s) * (i & 1 ? q.y : q.x) +
                         weight_at(weights[1], first_row + r, first_row + s) * (i & 1 ? k.y : k.x);
      of_write.value[i] += factors[i] * read;
    }
  }
}

/// A row's bf16 pairs of two neighbouring blocks of eight channels, the first at target + offset.
__device__ inline void store_two_blocks(__nv_bfloat16* target, uint32_t offset, uint32_t first,
                                        uint32_t second, bool valid, int lane) {
  const bool odd = (lane & 1) != 0;
  const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
  const uint2 words = odd ? make_uint2(other, second) : make_uint2(first, other);
  if (valid) *reinterpret_cast<uint2*>(target + (offset + (odd ? 8u : 0u) + (lane & 2) * 2u)) = words;
}

}  // namespace osdn::kernels
