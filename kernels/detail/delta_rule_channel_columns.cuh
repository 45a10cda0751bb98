// The second half of the gradient pass with a decay a key channel: the write keys' gradient and that of the
// decay.
#pragma once

#include "kernels/detail/delta_rule_channel_gradients.cuh"

namespace osdn::kernels {

template <int KP, int VT, bool kAnchored>
__device__ void ChannelGradients<KP, VT, kAnchored>::add_rows(Rows& d_write) const {
#pragma unroll 1
  for (int block = kSubBlocks - 1; block >= sub_block; --block) {
    if (block + 1 < kSubBlocks) {
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) decay(d_write[n], row_step(block, channel(n)));
    }
    if (block == sub_block && !anchored) break;
#pragma unroll
    for (int of = 0; of < 2; ++of) {
      uint32_t a[4];
      load_a_of_columns(a, weights(of), first_row, block * kSubBlock, lane);
#pragma unroll
      for (int pair = 0; pair < kBlocks / 2; ++pair) {
        uint32_t b[4];
        load_b_of_columns(b, of == 0 ? q() : k(), first_channel + pair * 16, block * kSubBlock, lane);
        mma_bf16(d_write[2 * pair], a, b[0], b[1]);
        mma_bf16(d_write[2 * pair + 1], a, b[2], b[3]);
      }
    }
  }
}

template <int KP, int VT, bool kAnchored>
__device__ float2 ChannelGradients<KP, VT, kAnchored>::finish_columns(Rows& d_key, const Rows& d_write,
                                                                      Rows& products,
                                                                      float (&k_dots)[2]) const {
  float2 totals = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    float column_factors[4];
    load_column_factors(column_factors, n);
#pragma unroll
    for (int half_rows = 0; half_rows < 2; ++half_rows) {
      const float2 y = tile_pair(w(), n, half_rows);
#pragma unroll
      for (int i = 2 * half_rows; i < 2 * half_rows + 2; ++i) {
        const float of_write = (i & 1 ? y.y : y.x) * d_write[n][i];
        products[n][i] -= of_write;
        k_dots[half_rows] += of_write;
        d_key[n][i] += d_write[n][i] * column_factors[i];
      }
    }
    if constexpr (!kAnchored) {
      if (!anchored) {
        TokenPairs of_write = {};
        const TriangleTile both[2] = {weights(0), weights(1)};
        add_later_pairs(of_write, vectors(), both, first_row, channel(n), lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = row + (i >> 1) * 8;
          const float2 query = vectors().query(token, channel(n));
          const float2 write = vectors().write(token, channel(n));
          const float x = i & 1 ? write.y : write.x;
          const float self = weight_at(weights(0), token, token) * (i & 1 ? query.y : query.x);
          products[n][i] -= x * of_write.value[i];
          k_dots[i >> 1] += x * (of_write.value[i] + self);
          d_key[n][i] += of_write.value[i] + self;
        }
      }
    }
    const float2 all = running_sums<true>(products[n], lane);
    if ((lane >> 2) == n) totals = all;
  }
  return totals;
}

template <int KP, int VT, bool kAnchored>
__device__ void ChannelGradients<KP, VT, kAnchored>::read_d_state(Rows& d_end) const {
  const float betas[2] = {row_value(beta(), 0), row_value(beta(), 1)};
  for (int tile = 0; tile < value_tiles(); ++tile) {
    if (tile > 0) {
      __syncthreads();
      copy_error(tile);
      copy_state(d_state(), args.d_states, tile);
    }
    arrived();
#pragma unroll 2
    for (int block = 0; block < VT / 16; ++block) {
      uint32_t a[4];
      load_a_of_columns(a, error(), first_row, block * 16, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = scaled_pair(a[i], betas[i & 1], betas[i & 1]);
#pragma unroll
      for (int pair = 0; pair < kBlocks / 2; ++pair) {
        uint32_t b[4];
        load_b_of_columns(b, d_state(), first_channel + pair * 16, block * 16, lane);
        mma_bf16(d_end[2 * pair], a, b[0], b[1]);
        mma_bf16(d_end[2 * pair + 1], a, b[2], b[3]);
      }
    }
  }
}

template <int KP, int VT, bool kAnchored>
__device__ float2 ChannelGradients<KP, VT, kAnchored>::finish_end(Rows& d_key, Rows& d_end, Rows& sums,
                                                                  float (&k_dots)[2]) const {
  float2 totals = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    float column_factors[4];
    load_column_factors(column_factors, n);
    decay(d_end[n], step_to_end(channel(n)));
    float before[4];
#pragma unroll
    for (int half_rows = 0; half_rows < 2; ++half_rows) {
      const float2 y = tile_pair(w(), n, half_rows);
#pragma unroll
      for (int i = 2 * half_rows; i < 2 * half_rows + 2; ++i) {
        before[i] = (i & 1 ? y.y : y.x) * d_end[n][i];
        k_dots[half_rows] += before[i];
        d_key[n][i] += d_end[n][i] * column_factors[i];
      }
    }
    const float2 all = running_sums<false>(before, lane);
    if ((lane >> 2) == n) totals = all;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // The token before g = 0 is the eighth for g + 8, none for g.
      const float eighth = __shfl_sync(0xffffffffu, before[i], 28 + (lane & 3));
      const float low = __shfl_up_sync(0xffffffffu, before[i], 4);
      const float high = __shfl_up_sync(0xffffffffu, before[2 + i], 4);
      sums[n][i] += lane >= 4 ? low : 0.0f;
      sums[n][2 + i] += lane >= 4 ? high : eighth;
    }
  }
  return totals;
}

template <int KP, int VT, bool kAnchored>
__device__ void ChannelGradients<KP, VT, kAnchored>::finish_log_decay(const Rows& sums, uint32_t row_totals,
                                                                      uint32_t column_totals) const {
  const bool no_past =
      !args.initial_state && row == 0 && place.token == shape.offsets[shape.chunk_sequences[place.chunk]];
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    float2 constant = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int group = 0; group < kChannelGradientThreads / KP; ++group)
      constant = sum(constant, read_shared_2(base + Memory::kThrough + (group * KP + channel(n)) * 4));
    constant =
        product(constant, __ldg(reinterpret_cast<const float2*>(args.chunk_decay + slot * KP + channel(n))));
#pragma unroll
    for (int other = 1; other < kSubBlocks; ++other) {
      const int block = (sub_block + other) % kSubBlocks;
      const uint32_t totals = block > sub_block ? row_totals : column_totals;
      constant = sum(constant, read_shared_2(totals + (block * KP + channel(n)) * 4));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = row + i * 8;
      if (token >= place.rows || channel(n) >= shape.key_size) continue;
      float2 out = sum(constant, make_float2(sums[n][2 * i], sums[n][2 * i + 1]));
      if (i == 0 && no_past) out = make_float2(0.0f, 0.0f);
      *reinterpret_cast<float2*>(chunk_of(args.d_log_decay, shape.key_size) +
                                 (row_offset(token, shape.key_size) + channel(n))) = out;
    }
  }
}

}  // namespace osdn::kernels
