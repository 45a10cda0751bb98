// The second half of the gradient pass with a decay a key channel: the write keys' gradient, the way through
// the norms, and the gradient of the decay.
#pragma once

#include "kernels/detail/delta_rule_channel_gradients.cuh"

namespace osdn::kernels {

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::add_rows(Rows& d_write) const {
  const uint32_t columns[2] = {column_fragments(q()), column_fragments(k())};
  uint32_t rows = column_weight_fragments(kSubBlocks - 1);
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
      load_blocks_transposed(a, rows + of * TriangleTile::kBytes);
#pragma unroll
      for (int pair = 0; pair < kBlocks / 2; ++pair) {
        uint32_t b[4];
        load_columns(b, columns[of], pair, block);
        mma_bf16(d_write[2 * pair], a, b[0], b[1]);
        mma_bf16(d_write[2 * pair + 1], a, b[2], b[3]);
      }
    }
    rows -= block * 512;  // to the row of sub-blocks before, which is one shorter
  }
}

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::leave_anchors(Rows& d_q, Rows& d_k,
                                                                                  Rows& d_write,
                                                                                  Rows& products) const {
  const TriangleTile both[2] = {weights(0), weights(1)};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    TokenPairs of_query = {};
    TokenPairs of_key = {};
    TokenPairs of_write = {};
    if (!anchored) {
      add_earlier_pairs(of_query, of_key, vectors(), both, first_row, channel(n), lane);
      add_later_pairs(of_write, vectors(), both, first_row, channel(n), lane);
    }
    const BlockLogs sums(load_log_decays(n), lane);
#pragma unroll
    for (int half_rows = 0; half_rows < 2; ++half_rows) {
      const int token = row + half_rows * 8;
      const float2 anchored_query = tile_pair(q(), n, half_rows);
      const float2 anchored_key = tile_pair(k(), n, half_rows);
      const float2 anchored_write = tile_pair(w(), n, half_rows);
      const float2 query = vector_pair(0, n, half_rows);
      const float2 key = vector_pair(1, n, half_rows);
      const float2 write = vector_pair(2, n, half_rows);
      const float2 end = end_pair(n, half_rows);
      // A query's pair with its own token, no one's decay.
      const float self = anchored ? 0.0f : weight_at(weights(0), token, token);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = 2 * half_rows + j;
        const auto at = [&](float2 x) { return j == 0 ? x.x : x.y; };
        products[n][i] = at(anchored_query) * d_q[n][i] + at(anchored_key) * d_k[n][i] -
                         at(anchored_write) * d_write[n][i] + at(query) * of_query.value[i] +
                         at(key) * of_key.value[i] - at(write) * of_write.value[i];
        d_q[n][i] = d_q[n][i] * sums.row_factor(i, anchored) + of_query.value[i] + self * at(write);
        d_k[n][i] = d_k[n][i] * sums.row_factor(i, anchored) + of_key.value[i];
        d_write[n][i] = (d_write[n][i] + at(end)) * sums.column_factor(i, anchored) + of_write.value[i] +
                        self * at(query);
      }
    }
  }
}

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::dot_rows(const Rows& d_q, const Rows& d_k,
                                                                             const Rows& d_write,
                                                                             float (&q_dots)[2],
                                                                             float (&k_dots)[2]) const {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 y = vector_pair(0, n, i);
      const float2 z = vector_pair(1, n, i);
      q_dots[i] += y.x * d_q[n][2 * i] + y.y * d_q[n][2 * i + 1];
      k_dots[i] += z.x * d_k[n][2 * i] + z.y * d_k[n][2 * i + 1];
      if (own_write_key) continue;
      const float2 x = vector_pair(2, n, i);
      const float2 end = kAnchored ? end_pair(n, i) : make_float2(0.0f, 0.0f);
      k_dots[i] += x.x * (d_write[n][2 * i] + end.x) + x.y * (d_write[n][2 * i + 1] + end.y);
    }
  }
}

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::finish(Rows& d_q, const Rows& d_k,
                                                                           Rows& d_write) const {
  const float q_norms[2] = {row_value(q_rstd(), 0), row_value(q_rstd(), 1)};
  const float k_norms[2] = {row_value(k_rstd(), 0), row_value(k_rstd(), 1)};
  float q_along[2] = {along(0, 0), along(0, 1)};
  float k_along[2] = {along(1, 0), along(1, 1)};
  if constexpr (kFolded) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      q_along[i] *= q_norms[i] * q_norms[i];
      k_along[i] *= k_norms[i] * k_norms[i];
    }
  }
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto at = [](float2 pair, int j) { return j == 0 ? pair.x : pair.y; };
      // One vector after the other: all accumulators are held, so there is no room for more.
      const float2 to_token = kAnchored ? tile_pair(factors(), n, i) : make_float2(1.0f, 1.0f);
      const float2 from_token =
          kAnchored ? make_float2(reciprocal(to_token.x), reciprocal(to_token.y)) : make_float2(1.0f, 1.0f);
      float of_write[2];
      float less[2];
      const float2 x = tile_pair(w(), n, i);
      const float2 end = end_pair(n, i);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& by_write = d_write[n][2 * i + j];
        of_write[j] = kAnchored ? (by_write + at(end, j)) * at(from_token, j) : by_write;
        less[j] = at(x, j) * by_write;
        by_write = at(x, j) * at(end, j);
      }
      if (own_write_key) write_shared_bits(tile_address(w(), n, i), pack_bf16(of_write[0], of_write[1]));
      const float2 z = vector_pair(1, n, i);
      float of_key[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float by_key = d_k[n][2 * i + j];
        of_key[j] =
            (kFolded ? 1.0f : k_norms[i]) * (by_key * at(to_token, j) + (own_write_key ? 0.0f : of_write[j]) -
                                             at(z, j) * at(from_token, j) * k_along[i]);
        less[j] -= at(z, j) * by_key;
      }
      write_shared_bits(tile_address(k(), n, i), pack_bf16(of_key[0], of_key[1]));
      const float2 y = vector_pair(0, n, i);
      float of_query[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& by_query = d_q[n][2 * i + j];
        of_query[j] = (kFolded ? 1.0f : q_norms[i]) *
                      (by_query * at(to_token, j) - at(y, j) * at(from_token, j) * q_along[i]);
        if (kAnchored) by_query = at(y, j) * by_query - less[j];
      }
      write_shared_bits(tile_address(q(), n, i), pack_bf16(of_query[0], of_query[1]));
    }
  }
}

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::finish_log_decay() const {
  const bool walks = lane < kWalkLanes;
  const int mine = walk_channel();
  float2 sums[kSubBlock];  // of the pairs from each of the warp's tokens on and of the end before it
  if (walks) {
    float2 all = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int r = kSubBlock - 1; r >= 0; --r) {
      all = sum(all, read_shared_2(sum_address(Memory::kPairSums, first_row + r, mine)));
      sums[r] = all;
    }
    write_shared_2(logs(0, sub_block, mine), all.x, all.y);
    all = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int r = 0; r < kSubBlock; ++r) {
      sums[r] = sum(sums[r], all);
      all = sum(all, read_shared_2(sum_address(Memory::kEndSums, first_row + r, mine)));
    }
    write_shared_2(logs(1, sub_block, mine), all.x, all.y);
  }
  __syncthreads();
  if (!walks || mine >= shape.key_size) return;
  float2 constant = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int group = 0; group < kChannelGradientThreads / KP; ++group)
    constant = sum(constant, read_shared_2(base + Memory::kThrough + (group * KP + mine) * 4));
  constant = product(
      constant, __ldg(reinterpret_cast<const float2*>(args.chunk_decay + slot * args.padded_size + mine)));
#pragma unroll
  for (int other = 1; other < kSubBlocks; ++other) {
    const int block = (sub_block + other) % kSubBlocks;
    constant = sum(constant, log_pair(block > sub_block ? 0 : 1, block, mine));
  }
  const bool no_past = !args.initial_state && first_row == 0 &&
                       place.token == shape.offsets[shape.chunk_sequences[place.chunk]];
  Log* target = chunk_of(static_cast<Log*>(args.d_log_decay), args.row_size) + mine;
#pragma unroll
  for (int r = 0; r < kSubBlock; ++r) {
    const float2 out = r == 0 && no_past ? make_float2(0.0f, 0.0f) : sum(sums[r], constant);
    if (first_row + r < place.rows) store_pair(target + row_offset(first_row + r, args.row_size), out);
  }
}

}  // namespace osdn::kernels
