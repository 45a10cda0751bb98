// Last pass of the delta rule with a decay a key channel: the gradients of every token
// (docs/ops/delta_rule.md eq. 8-10, "Decay by channel"), one block of eight warps a (chunk, value head). A
// warp owns 16 tokens and half of the key channels of dQ, dK and dW at once. Tiles take turns in 99 KB of
// shared memory, so that two blocks fit on a multiprocessor and one computes while the other loads.
//
// Rows of q and k and columns of the write key carry decays to an anchor of their 16 tokens. The products of
// sub-blocks are summed from the far ones to the near ones, the sum decayed from anchor to anchor between
// them, so no factor but those within 16 tokens ever exceeds 1. Where a decay within 16 tokens is too strong
// for one anchor, rows are anchored at the start, columns at the end, and the pairs within are added one by
// one.
#include "kernels/delta_rule_channel.h"
#include "kernels/detail/delta_rule_channel_gradients.cuh"

namespace osdn::kernels {

template <int KP, int VT, bool kAnchored>
__device__ void ChannelGradients<KP, VT, kAnchored>::weigh_pairs() const {
  const bool of_query = half == 0;
  const int64_t first = at(0, 1);
  copy_vector_async(beta(), args.in.beta + first, shape.num_value_heads, place.rows, 0);
  copy_vector_async(q_rstd(), args.q_rstd + first, shape.num_value_heads, place.rows, 64);
  copy_vector_async(k_rstd(), args.k_rstd + first, shape.num_value_heads, place.rows, 128);
  float products[kChunk / 8][4] = {};
  for (int tile = 0; tile < value_tiles(); ++tile) {
    if (tile > 0) __syncthreads();
    copy_scan_tiles(tile);
    copy_error(tile);
    if (value_tiles() == 1) copy_state(state(), args.states, 0);
    arrived();
#pragma unroll 2
    for (int block = 0; block < VT / 16; ++block) {
      uint32_t a[4];
      if (of_query)
        load_a_of_rows(a, upstream(), first_row, block * 16, lane);
      else
        load_a_of_columns(a, solved(), first_row, block * 16, lane);
#pragma unroll
      for (int pair = 0; pair < kChunk / 16; ++pair) {
        if (pair > sub_block) break;
        uint32_t b[4];
        load_b_of_columns(b, error(), pair * 16, block * 16, lane);
        mma_bf16(products[2 * pair], a, b[0], b[1]);
        mma_bf16(products[2 * pair + 1], a, b[2], b[3]);
      }
    }
  }
  const float row_weights[2] = {of_query ? args.in.scale : -row_value(beta(), 0),
                                of_query ? args.in.scale : -row_value(beta(), 1)};
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    if (n / 2 > sub_block) break;
    const int column = n * 8 + (lane & 3) * 2;
    const float2 column_beta = column_pair(beta(), n, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = row + i * 8;
      const float low = products[n][2 * i];
      const float high = products[n][2 * i + 1];
      if (!of_query && token < place.rows) {
        if (column == token) args.d_beta[at(token, 1)] = low;
        if (column + 1 == token) args.d_beta[at(token, 1)] = high;
      }
      const int limit = of_query ? token : token - 1;
      write_shared_bits(weights(half).piece(token, n * 8) + (lane & 3) * 4,
                        pack_bf16(column <= limit ? low * row_weights[i] * column_beta.x : 0.0f,
                                  column + 1 <= limit ? high * row_weights[i] * column_beta.y : 0.0f));
    }
  }
}

template <int KP, int VT, bool kAnchored>
__device__ void ChannelGradients<KP, VT, kAnchored>::read_state(Rows& d_q, Rows& d_k) const {
  const float betas[2] = {row_value(beta(), 0), row_value(beta(), 1)};
  constexpr int kGroup = KP;  // threads over eight value channels of the state
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  float through[8] = {};
  for (int tile = 0; tile < value_tiles(); ++tile) {
    if (value_tiles() > 1) {
      __syncthreads();
      copy_scan_tiles(tile);
      copy_state(state(), args.states, tile);
      arrived();
    }
    const auto* after = reinterpret_cast<const uint4*>(state_tile(args.d_states, tile));
#pragma unroll 4
    for (int block = group; block < VT / 8; block += kChannelGradientThreads / kGroup) {
      const int piece = block * kGroup + static_cast<int>(threadIdx.x) % kGroup;
      const uint4 x = read_shared_piece(state().base + piece * 16);
      const uint4 y = __ldg(after + piece);
      const uint32_t xs[4] = {x.x, x.y, x.z, x.w};
      const uint32_t ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 a = unpack_bf16(xs[i]);
        const float2 b = unpack_bf16(ys[i]);
        through[2 * i] += a.x * b.x;
        through[2 * i + 1] += a.y * b.y;
      }
    }
#pragma unroll 2
    for (int block = 0; block < VT / 16; ++block) {
      uint32_t of_query[4];
      uint32_t of_key[4];
      load_a_of_rows(of_query, upstream(), first_row, block * 16, lane);
      load_a_of_columns(of_key, solved(), first_row, block * 16, lane);
      if ((block & 1) == half) store_d_v(of_key, tile * VT + block * 16, betas);
#pragma unroll
      for (int pair = 0; pair < kBlocks / 2; ++pair) {
        uint32_t b[4];
        load_b_of_columns(b, state(), first_channel + pair * 16, block * 16, lane);
        mma_bf16(d_q[2 * pair], of_query, b[0], b[1]);
        mma_bf16(d_q[2 * pair + 1], of_query, b[2], b[3]);
        mma_bf16(d_k[2 * pair], of_key, b[0], b[1]);
        mma_bf16(d_k[2 * pair + 1], of_key, b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2)
      through[i] += __shfl_xor_sync(0xffffffffu, through[i], distance);
    if ((lane & 7) == 0)
      write_shared(
          base + Memory::kThrough + (group * KP + static_cast<int>(threadIdx.x) % kGroup / 8 * 8 + i) * 4,
          through[i]);
  }
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d_q[n][i] *= args.in.scale;
      d_k[n][i] *= -betas[i >> 1];
    }
}

template <int KP, int VT, bool kAnchored>
__device__ void ChannelGradients<KP, VT, kAnchored>::prepare_rows() const {
  __syncthreads();  // dO, F and the state are done with
  copy_rows_async<kChannelGradientThreads>(q(), rows_at(args.in.q, place.token, place.key_head),
                                           args.in.q.token_stride, place.rows, shape.key_size);
  copy_rows_async<kChannelGradientThreads>(k(), rows_at(args.in.k, place.token, place.key_head),
                                           args.in.k.token_stride, place.rows, shape.key_size);
  if (own_write_key)
    copy_rows_async<kChannelGradientThreads>(w(), rows_at(args.in.write_key, place.token, place.head),
                                             args.in.write_key.token_stride, place.rows, shape.key_size);
  if (value_tiles() > 1) copy_error(0);
  arrived();
  const float q_norms[2] = {row_value(q_rstd(), 0), row_value(q_rstd(), 1)};
  const float k_norms[2] = {row_value(k_rstd(), 0), row_value(k_rstd(), 1)};
  LogDecays log_decays = load_log_decays(0);
#pragma unroll 2
  for (int n = 0; n < kBlocks; ++n) {
    const BlockLogs sums(log_decays, lane);
    if (n + 1 < kBlocks) log_decays = load_log_decays(n + 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto scale = [&](const RowTile<KP>& to, uint32_t pair, float norm, float low, float high) {
        write_shared_bits(to.piece(row + i * 8, first_channel + n * 8) + (lane & 3) * 4,
                          scaled_pair(pair, norm * low, norm * high));
      };
      const auto given = [&](const RowTile<KP>& from) {
        return read_shared_bits(from.piece(row + i * 8, first_channel + n * 8) + (lane & 3) * 4);
      };
      const float row_low = sums.row_factor(2 * i, anchored);
      const float row_high = sums.row_factor(2 * i + 1, anchored);
      scale(w(), given(own_write_key ? w() : k()), own_write_key ? 1.0f : k_norms[i],
            sums.column_factor(2 * i, anchored), sums.column_factor(2 * i + 1, anchored));
      scale(q(), given(q()), q_norms[i], row_low, row_high);
      scale(k(), given(k()), k_norms[i], row_low, row_high);
      write_shared_bits(factors().piece(row + i * 8, first_channel + n * 8) + (lane & 3) * 4,
                        pack_bf16(row_low, row_high));
    }
    if (lane < 4) {
      const auto keep = [&](int which, float2 x) {
        write_shared_2(logs(which, sub_block, channel(n)), x.x, x.y);
      };
      keep(kRowAnchor, sums.row_anchor(anchored));
      keep(kColumnAnchor, sums.column_anchor(anchored));
      keep(kTotal, sums.total);
    }
  }
  __syncthreads();
  make_steps();
}

template <int KP, int VT, bool kAnchored>
__device__ void ChannelGradients<KP, VT, kAnchored>::add_columns(Rows& d_q, Rows& d_k) const {
#pragma unroll 1
  for (int block = 0; block <= sub_block; ++block) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float2 factor = column_step(block, channel(n));
      decay(d_q[n], factor);
      decay(d_k[n], factor);
    }
    if (block == sub_block && !anchored) break;
    uint32_t of_query[4];
    uint32_t of_key[4];
    load_a_of_rows(of_query, weights(0), first_row, block * kSubBlock, lane);
    load_a_of_rows(of_key, weights(1), first_row, block * kSubBlock, lane);
#pragma unroll
    for (int pair = 0; pair < kBlocks / 2; ++pair) {
      uint32_t b[4];
      load_b_of_columns(b, w(), first_channel + pair * 16, block * kSubBlock, lane);
      mma_bf16(d_q[2 * pair], of_query, b[0], b[1]);
      mma_bf16(d_q[2 * pair + 1], of_query, b[2], b[3]);
      mma_bf16(d_k[2 * pair], of_key, b[0], b[1]);
      mma_bf16(d_k[2 * pair + 1], of_key, b[2], b[3]);
    }
  }
}

template <int KP, int VT, bool kAnchored>
__device__ void ChannelGradients<KP, VT, kAnchored>::finish_rows(Rows& d_q, Rows& d_k, Rows& products,
                                                                 float (&q_dots)[2],
                                                                 float (&k_dots)[2]) const {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    float row_factors[4];
    load_row_factors(row_factors, n);
#pragma unroll
    for (int half_rows = 0; half_rows < 2; ++half_rows) {
      const float2 y = tile_pair(q(), n, half_rows);
      const float2 z = tile_pair(k(), n, half_rows);
#pragma unroll
      for (int i = 2 * half_rows; i < 2 * half_rows + 2; ++i) {
        const float of_query = (i & 1 ? y.y : y.x) * d_q[n][i];
        const float of_key = (i & 1 ? z.y : z.x) * d_k[n][i];
        products[n][i] = of_query + of_key;
        q_dots[half_rows] += of_query;
        k_dots[half_rows] += of_key;
        d_q[n][i] *= row_factors[i];
        d_k[n][i] *= row_factors[i];
      }
    }
    if constexpr (!kAnchored) {
      if (anchored) continue;
      TokenPairs of_query = {};
      TokenPairs of_key = {};
      const TriangleTile both[2] = {weights(0), weights(1)};
      add_earlier_pairs(of_query, of_key, vectors(), both, first_row, channel(n), lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = row + (i >> 1) * 8;
        const float2 query = vectors().query(token, channel(n));
        const float2 key = vectors().key(token, channel(n));
        const float2 write = vectors().write(token, channel(n));
        const float x = (i & 1 ? query.y : query.x);
        const float from_query = x * of_query.value[i];
        const float from_key = (i & 1 ? key.y : key.x) * of_key.value[i];
        const float self = weight_at(weights(0), token, token) * (i & 1 ? write.y : write.x);
        products[n][i] += from_query + from_key;
        q_dots[i >> 1] += from_query + x * self;
        k_dots[i >> 1] += from_key;
        d_q[n][i] += of_query.value[i] + self;
        d_k[n][i] += of_key.value[i];
      }
    }
  }
}

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
      *reinterpret_cast<float2*>(args.d_log_decay + at(token, shape.key_size) + channel(n)) = out;
    }
  }
}

namespace {

/// Chunks where one anchor serves each sub-block, or the others: the former need fewer registers.
template <int KP, int VT, bool kAnchored>
__global__ void __launch_bounds__(kChannelGradientThreads, kAnchored ? 2 : 1)
    delta_rule_channel_gradients_kernel(const __grid_constant__ DeltaRuleChannelGradientsArgs args) {
  using Part = ChannelGradients<KP, VT, kAnchored>;
  extern __shared__ __align__(128) unsigned char memory[];
  const Part part(args, shared_address(memory));
  constexpr int kAll = (1 << kSubBlocks) - 1;
  if ((args.anchored[part.slot] == kAll) != kAnchored) return;

  part.weigh_pairs();
  float d_key[Part::kBlocks][4] = {};  // of the key, then with or instead of it of the write key
  float sums[Part::kBlocks][4];        // for the gradient of the decay
  float q_dots[2] = {};
  float k_dots[2] = {};
  {
    float d_q[Part::kBlocks][4] = {};
    part.read_state(d_q, d_key);
    part.prepare_rows();
    part.add_columns(d_q, d_key);
    part.finish_rows(d_q, d_key, sums, q_dots, k_dots);
    part.share_dots(0, q_dots);
    if (part.own_write_key) part.share_dots(1, k_dots);
    __syncthreads();
    part.store_through_norm(args.d_q, d_q, 0);
  }
  if (part.own_write_key) {
    part.store_through_norm(args.d_k, d_key, 1);
#pragma unroll
    for (int n = 0; n < Part::kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) d_key[n][i] = 0.0f;
  }

  float2 row_totals;
  {
    float d_write[Part::kBlocks][4] = {};
    part.add_rows(d_write);
    __syncthreads();  // the tiles of q and k are done with
    part.copy_state(part.d_state(), args.d_states, 0);
    copy_async_commit();
    row_totals = part.finish_columns(d_key, d_write, sums, k_dots);
  }
  float d_end[Part::kBlocks][4] = {};
  part.read_d_state(d_end);
  const float2 column_totals = part.finish_end(d_key, d_end, sums, k_dots);
  if (!part.own_write_key) part.share_dots(1, k_dots);
  const uint32_t shared_totals = part.weights(0).base;  // done with since read_d_state's barrier
  part.share_totals(shared_totals, row_totals);
  part.share_totals(shared_totals + kSubBlocks * KP * 4, column_totals);
  __syncthreads();
  part.finish_log_decay(sums, shared_totals, shared_totals + kSubBlocks * KP * 4);
  if (part.own_write_key)
    part.store_plain(args.d_write_key, d_key);
  else
    part.store_through_norm(args.d_k, d_key, 1);
}

template <int KP, int VT, bool kAnchored>
void launch_channel_gradients(const DeltaRuleChannelGradientsArgs& args, CUstream_st* stream) {
  const int64_t blocks = args.in.shape.num_chunks * args.in.shape.num_value_heads;
  launch_kernel(delta_rule_channel_gradients_kernel<KP, VT, kAnchored>, dim3(static_cast<unsigned>(blocks)),
                kChannelGradientThreads, ChannelGradientMemory<KP, VT>::kBytes, args, stream);
}

}  // namespace

void launch(const DeltaRuleChannelGradientsArgs& args, CUstream_st* stream) {
  if (args.in.shape.num_chunks * args.in.shape.num_value_heads == 0) return;
  by_key_size(args.in.shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    if (delta_rule_padded_value_size(args.in.shape.value_size) == 64)
      launch_channel_gradients<KP, 64, true>(args, stream);
    else
      launch_channel_gradients<KP, 128, true>(args, stream);
    launch_channel_gradients<KP, 64, false>(args, stream);
  });
}

}  // namespace osdn::kernels
