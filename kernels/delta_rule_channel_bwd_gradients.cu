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
#include "kernels/detail/delta_rule_channel_columns.cuh"
#include "kernels/detail/delta_rule_channel_gradients.cuh"

namespace osdn::kernels {

template <int KP, int VT, bool kAnchored>
__device__ void ChannelGradients<KP, VT, kAnchored>::weigh_pairs() const {
  const bool of_query = half == 0;
  const int64_t first = place.token * shape.num_value_heads + place.head;
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
        if (column == token) chunk_of(args.d_beta, 1)[row_offset(token, 1)] = low;
        if (column + 1 == token) chunk_of(args.d_beta, 1)[row_offset(token, 1)] = high;
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
        write_shared_bits(tile_address(to, n, i), scaled_pair(pair, norm * low, norm * high));
      };
      const auto given = [&](const RowTile<KP>& from) { return read_shared_bits(tile_address(from, n, i)); };
      const float row_low = sums.row_factor(2 * i, anchored);
      const float row_high = sums.row_factor(2 * i + 1, anchored);
      scale(w(), given(own_write_key ? w() : k()), own_write_key ? 1.0f : k_norms[i],
            sums.column_factor(2 * i, anchored), sums.column_factor(2 * i + 1, anchored));
      scale(q(), given(q()), q_norms[i], row_low, row_high);
      scale(k(), given(k()), k_norms[i], row_low, row_high);
      write_shared_bits(tile_address(factors(), n, i), pack_bf16(row_low, row_high));
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
__device__ void ChannelGradients<KP, VT, kAnchored>::dot_rows(const Rows& d_q, const Rows& d_k,
                                                              OwnPairs& pairs, float (&q_dots)[2],
                                                              float (&k_dots)[2]) const {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 y = tile_pair(q(), n, i);
      const float2 z = tile_pair(k(), n, i);
      q_dots[i] += y.x * d_q[n][2 * i] + y.y * d_q[n][2 * i + 1];
      k_dots[i] += z.x * d_k[n][2 * i] + z.y * d_k[n][2 * i + 1];
    }
    if constexpr (!kAnchored) {
      TokenPairs of_query = {};
      TokenPairs of_key = {};
      const TriangleTile both[2] = {weights(0), weights(1)};
      if (!anchored) add_earlier_pairs(of_query, of_key, vectors(), both, first_row, channel(n), lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = row + (i >> 1) * 8;
        const float2 query = vectors().query(token, channel(n));
        const float2 key = vectors().key(token, channel(n));
        pairs.of_query[n][i] = of_query.value[i];
        pairs.of_key[n][i] = of_key.value[i];
        q_dots[i >> 1] += (i & 1 ? query.y : query.x) * (of_query.value[i] + self_query(n, i));
        k_dots[i >> 1] += (i & 1 ? key.y : key.x) * of_key.value[i];
      }
    }
  }
}

template <int KP, int VT, bool kAnchored>
__device__ void ChannelGradients<KP, VT, kAnchored>::finish_rows(Rows& d_q, Rows& d_k,
                                                                 const OwnPairs& pairs) const {
  const float q_norms[2] = {row_value(q_rstd(), 0), row_value(q_rstd(), 1)};
  const float k_norms[2] = {row_value(k_rstd(), 0), row_value(k_rstd(), 1)};
  const float q_along[2] = {along(0, 0), along(0, 1)};
  const float k_along[2] = {own_write_key ? along(1, 0) : 0.0f, own_write_key ? along(1, 1) : 0.0f};
#pragma unroll
  for (int n = 0; n < kBlocks; n += 2) {
    uint32_t q_words[2][2];
    uint32_t k_words[2][2];
#pragma unroll
    for (int next = 0; next < 2; ++next) {
      const int m = n + next;
      float row_factors[4];
      load_row_factors(row_factors, m);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 y = tile_pair(q(), m, i);
        const float2 z = tile_pair(k(), m, i);
        const float2 query = kAnchored ? make_float2(y.x * reciprocal(row_factors[2 * i]),
                                                     y.y * reciprocal(row_factors[2 * i + 1]))
                                       : unit_pair(0, m, i);
        float of_query[2];
        float of_key[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& x = d_q[m][2 * i + j];
          float& u = d_k[m][2 * i + j];
          of_query[j] = x * row_factors[2 * i + j];
          of_key[j] = u * row_factors[2 * i + j];
          x = (j == 0 ? y.x : y.y) * x + (j == 0 ? z.x : z.y) * u;
          if constexpr (!kAnchored) {
            const float2 key = unit_pair(1, m, i);
            const float from_query = pairs.of_query[m][2 * i + j];
            const float from_key = pairs.of_key[m][2 * i + j];
            of_query[j] += from_query + self_query(m, 2 * i + j);
            of_key[j] += from_key;
            x += (j == 0 ? query.x : query.y) * from_query + (j == 0 ? key.x : key.y) * from_key;
          }
          u = own_write_key ? 0.0f : of_key[j];
        }
        q_words[i][next] = pack_bf16(q_norms[i] * (of_query[0] - query.x * q_along[i]),
                                     q_norms[i] * (of_query[1] - query.y * q_along[i]));
        if (own_write_key) {
          const float2 key = unit_pair(1, m, i);
          k_words[i][next] = pack_bf16(k_norms[i] * (of_key[0] - key.x * k_along[i]),
                                       k_norms[i] * (of_key[1] - key.y * k_along[i]));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_blocks_of(args.d_q, row + i * 8, n, q_words[i][0], q_words[i][1]);
      if (own_write_key) store_blocks_of(args.d_k, row + i * 8, n, k_words[i][0], k_words[i][1]);
    }
  }
}

namespace {

/// Chunks where one anchor serves each sub-block, or the others: the former need fewer registers.
template <int KP, int VT, bool kAnchored>
__global__ void __launch_bounds__(kChannelGradientThreads, kAnchored ? 2 : 1)
    delta_rule_channel_gradients_kernel(const __grid_constant__ DeltaRuleChannelGradientsArgs args) {
  using Part = ChannelGradients<KP, VT, kAnchored>;
  const Part part(args, dynamic_shared());
  constexpr int kAll = (1 << kSubBlocks) - 1;
  if ((args.anchored[part.slot] == kAll) != kAnchored) return;

  part.weigh_pairs();
  float sums[Part::kBlocks][4] = {};   // dQ, then the sums for the gradient of the decay
  float d_key[Part::kBlocks][4] = {};  // of the key, then with or instead of it of the write key
  float k_dots[2] = {};
  part.read_state(sums, d_key);
  part.prepare_rows();
  part.add_columns(sums, d_key);
  {
    typename Part::OwnPairs pairs;
    float q_dots[2] = {};
    part.dot_rows(sums, d_key, pairs, q_dots, k_dots);
    part.share_dots(0, q_dots);
    if (part.own_write_key) part.share_dots(1, k_dots);
    __syncthreads();
    part.finish_rows(sums, d_key, pairs);
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
    part.store_key(d_key);
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
