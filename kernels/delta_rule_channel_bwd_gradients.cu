// Last pass of the delta rule with a decay a key channel: the gradients of every token
// (docs/ops/delta_rule.md eq. 8-10, "Decay by channel"), one block of eight warps a (chunk, value head). A
// warp owns 16 tokens and half of the key channels of dQ, dK and dW at once. Tiles take turns in 99 KB of
// shared memory, so that two blocks fit on a multiprocessor and one computes while the other loads.
// What there is no room for yet is on its way to the L2 cache meanwhile.
//
// Rows of q and k and columns of the write key carry decays to an anchor of their 16 tokens. The products of
// sub-blocks are summed from the far ones to the near ones, the sum decayed from anchor to anchor between
// them, so no factor but those within 16 tokens ever exceeds 1. Where a decay within 16 tokens is too strong
// for one anchor, rows are anchored at the start, columns at the end, and the pairs within are added one by
// one.
#include <algorithm>

#include "kernels/common/warp.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/delta_rule_channel.h"
#include "kernels/detail/delta_rule_channel_columns.cuh"
#include "kernels/detail/delta_rule_channel_gradients.cuh"

namespace osdn::kernels {

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::weigh_pairs() const {
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
    copy_async_commit();
    if (value_tiles() == 1) copy_state(state(), args.states, 0);
    copy_async_commit();
    if (tile == 0) prefetch();
    arrived_but_last();
    Products::begin(products);
    // The same in all lanes as far as the compiler can see: warps branch as a whole.
    const int whole_warp = __shfl_sync(0xffffffffu, warp, 0);
    Products::template add_times_error<VT>(products, scan_rows(), error(), whole_warp, lane);
    Products::end();
    Products::template wait<0>(products);
  }
  const float row_weights[2] = {row_weight(of_query, 0), row_weight(of_query, 1)};
  // In a block on the diagonal a row's own number is column 2t + i for this i, if one of the lane's.
  const int own_column = (lane >> 2) - (lane & 3) * 2;
  const int last_column = own_column - (of_query ? 0 : 1);  // that counts
  float d_beta[2] = {};
  const uint32_t target = weights(half).piece(first_row, 0) + (lane >> 2) * 16 + (lane & 3) * 4;
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    if (n / 2 > sub_block) break;
    const bool diagonal = n / 2 == sub_block;
    const float2 column_weight = column_weights(n);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool own_block = (n & 1) == i;  // else all of the eight columns are before or after
      float pair[2] = {products[n][2 * i] * row_weights[i] * column_weight.x,
                       products[n][2 * i + 1] * row_weights[i] * column_weight.y};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (own_block) d_beta[i] = diagonal && own_column == j ? products[n][2 * i + j] : d_beta[i];
        pair[j] = diagonal && (own_block ? j > last_column : i < (n & 1)) ? 0.0f : pair[j];
      }
      write_shared_bits(target + n / 2 * 512 + (n & 1) * 128 + i * 256, pack_bf16(pair[0], pair[1]));
    }
  }
  if (!of_query && args.d_beta != nullptr && (own_column == 0 || own_column == 1)) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (row + i * 8 < place.rows) chunk_of(args.d_beta, 1)[row_offset(row + i * 8, 1)] = d_beta[i];
  }
}

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::read_state(Rows& d_q, Rows& d_k) const {
  const float betas[2] = {row_value(beta(), 0), row_value(beta(), 1)};
  for (int tile = 0; tile < value_tiles(); ++tile) {
    if (value_tiles() > 1) {
      __syncthreads();
      copy_scan_tiles(tile);
      copy_state(state(), args.states, tile);
      arrived();
    } else
      arrived();
    Products::begin(d_q, d_k);
    Products::template add_both_times_state<KP, VT>(d_q, d_k, scan_rows(), state(), first_channel, warp,
                                                    lane);
    Products::end();
    for (int block = half; block < VT / 16; block += 2) {
      uint32_t of_key[4];
      load_a_of_columns(of_key, solved(), first_row, block * 16, lane);
      store_d_v(of_key, tile * VT + block * 16, betas);
    }
    Products::template wait<0>(d_q);
    Products::template wait<0>(d_k);
  }
  const float of_query[2] = {row_weight(true, 0), row_weight(true, 1)};
  const float of_key[2] = {row_weight(false, 0), row_weight(false, 1)};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d_q[n][i] *= of_query[i >> 1];
      d_k[n][i] *= of_key[i >> 1];
    }
}

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::store_through(float (&through)[8]) const {
  const int in_group = static_cast<int>(threadIdx.x) % KP;  // KP threads over eight value channels
  const int group = static_cast<int>(threadIdx.x) / KP;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2)
      through[i] += __shfl_xor_sync(0xffffffffu, through[i], distance);
    if ((lane & 7) == 0)
      write_shared(base + Memory::kThrough + (group * KP + in_group / 8 * 8 + i) * 4, through[i]);
  }
}

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::add_state_products(
    float (&through)[8]) const {
  constexpr int kPieces = KP * VT / 8;
#pragma unroll 2
  for (int piece = static_cast<int>(threadIdx.x); piece < kPieces; piece += kChannelGradientThreads) {
    const uint4 x = read_shared_piece(state().base + piece * 16);
    const uint4 y = read_shared_piece(d_state().base + piece * 16);
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
}

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::read_d_state() const {
  float through[8] = {};
  float d_end[kBlocks][4] = {};
  for (int tile = 0; tile < value_tiles(); ++tile) {
    __syncthreads();  // dO, F and, of an earlier tile, the rest are done with
    if (value_tiles() > 1) {
      copy_error(tile);
      copy_state(state(), args.states, tile);
    }
    copy_state(d_state(), args.d_states, tile);
    arrived();
    Products::begin(d_end);
    Products::template add_error_times_state<KP, VT>(d_end, error(), d_state(), first_channel, warp, lane);
    Products::end();
    add_state_products(through);
    Products::template wait<0>(d_end);
  }
  store_through(through);
  __syncthreads();  // E and both states are done with
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float of_row = row_value(beta(), i) * (kFolded && !own_write_key ? row_value(k_rstd(), i) : 1.0f);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
      write_shared_bits(end_address(n, i), pack_bf16(of_row * d_end[n][2 * i], of_row * d_end[n][2 * i + 1]));
  }
}

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::prepare_rows() const {
  queue_rows();
  if (own_write_key)
    copy_rows_async<kChannelGradientThreads>(w(), rows_at(args.in.write_key, place.token, place.head),
                                             args.in.write_key.token_stride, place.rows, shape.key_size);
  copy_async_commit();
  const bool walks = lane < kWalkLanes;
  const Log* source =
      chunk_of(log_decay(), args.row_size) + row_offset(first_row, args.row_size) + walk_channel();
  const bool valid = walks && walk_channel() < shape.key_size;
  const auto load = [&](int r) {
    return load_pair_if(valid && first_row + r < place.rows, source + row_offset(r, args.row_size));
  };
  const auto log_of = [](auto loaded) {
    const float2 x = as_floats(loaded);
    return make_float2(fmaxf(x.x, kSmallestChannelDecay) * kLog2E,
                       fmaxf(x.y, kSmallestChannelDecay) * kLog2E);
  };
  const auto keep = [&](int which, float2 x) {
    write_shared_2(logs(which, sub_block, walk_channel()), x.x, x.y);
  };
  // Of token r, by the logarithms of the decays from the rows' anchor to it and from it to the columns'.
  const auto decay_token = [&](int r, float2 from_anchor, float2 to_anchor) {
    const float2 by_row = powers(from_anchor);
    const float2 by_column = powers(to_anchor);
    const uint32_t of_query = read_shared_bits(walk_address(q(), r));
    const uint32_t of_key = read_shared_bits(walk_address(k(), r));
    const uint32_t written = own_write_key ? read_shared_bits(walk_address(w(), r)) : of_key;
    if constexpr (kFolded) {
      const uint32_t factor = pack_bf16(by_row.x, by_row.y);
      write_shared_bits(walk_address(q(), r), multiply_pairs(of_query, factor));
      write_shared_bits(walk_address(k(), r), multiply_pairs(of_key, factor));
      write_shared_bits(walk_address(w(), r), multiply_pairs(written, pack_bf16(by_column.x, by_column.y)));
      write_shared_bits(walk_address(factors(), r), factor);
    } else {
      const float q_norm = read_shared(q_rstd() + (first_row + r) * 4);
      const float k_norm = read_shared(k_rstd() + (first_row + r) * 4);
      const float w_norm = own_write_key ? 1.0f : k_norm;
      write_shared_bits(walk_address(q(), r), scaled_pair(of_query, q_norm * by_row.x, q_norm * by_row.y));
      write_shared_bits(walk_address(k(), r), scaled_pair(of_key, k_norm * by_row.x, k_norm * by_row.y));
      write_shared_bits(walk_address(w(), r),
                        scaled_pair(written, w_norm * by_column.x, w_norm * by_column.y));
    }
  };
  if constexpr (kAnchored) {
    // Tokens on either side of the anchor need no logarithms of the other side's: 16 registers hold eight of
    // fp32 at a time, or all of bf16.
    constexpr int kHalf = kSubBlock / 2;
    constexpr int kHeld = sizeof(Log) == 2 ? kSubBlock : kHalf;
    LoadedPair<Log> x[kHeld];
#pragma unroll
    for (int r = 0; r < kHeld; ++r) x[r] = load(r);
    copy_async_wait<0>();
    __syncthreads();
    if (walks) {
      float2 middle = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int r = 0; r < kHalf; ++r) middle = sum(middle, log_of(x[r]));
      float2 to_token = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int r = 0; r < kHalf; ++r) {
        to_token = sum(to_token, log_of(x[r]));
        if constexpr (kHeld == kHalf) x[r] = load(r + kHalf);
        const float2 to_anchor = difference(middle, to_token);
        decay_token(r, make_float2(-to_anchor.x, -to_anchor.y), to_anchor);
      }
      float2 after = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int r = kHalf; r < kSubBlock; ++r) {
        after = sum(after, log_of(x[r % kHeld]));
        decay_token(r, after, make_float2(-after.x, -after.y));
      }
      keep(kRowAnchor, middle);
      keep(kTotal, sum(middle, after));
    }
  } else {
    float2 to_token[kSubBlock];  // from the sub-block's start
#pragma unroll
    for (int r = 0; r < kSubBlock; ++r) to_token[r] = as_floats(load(r));
    copy_async_wait<0>();
    __syncthreads();
    if (walks) {
      float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int r = 0; r < kSubBlock; ++r) {
        total = sum(total, log_of(to_token[r]));
        to_token[r] = total;
      }
      const float2 middle = to_token[kSubBlock / 2 - 1];
      const float2 row_anchor = anchored ? middle : make_float2(0.0f, 0.0f);
      const float2 column_anchor = anchored ? middle : total;
      keep(kRowAnchor, row_anchor);
      keep(kColumnAnchor, column_anchor);
      keep(kTotal, total);
#pragma unroll
      for (int r = 0; r < kSubBlock; ++r)
        decay_token(r, difference(to_token[r], row_anchor), difference(column_anchor, to_token[r]));
    }
  }
  __syncthreads();
  make_steps();
}

template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void ChannelGradients<KP, VT, kAnchored, Products, Log>::add_columns(Rows& d_q, Rows& d_k) const {
  const uint32_t columns = column_fragments(w());
  const uint32_t rows = row_weight_fragments();
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
    load_blocks(of_query, rows + block * 512);
    load_blocks(of_key, rows + block * 512 + TriangleTile::kBytes);
#pragma unroll
    for (int pair = 0; pair < kBlocks / 2; ++pair) {
      uint32_t b[4];
      load_columns(b, columns, pair, block);
      mma_bf16(d_q[2 * pair], of_query, b[0], b[1]);
      mma_bf16(d_q[2 * pair + 1], of_query, b[2], b[3]);
      mma_bf16(d_k[2 * pair], of_key, b[0], b[1]);
      mma_bf16(d_k[2 * pair + 1], of_key, b[2], b[3]);
    }
  }
}

namespace {

// On a multiprocessor, by its shared memory: 228 KB at compute capability 9.0, 164 KB or less elsewhere.
constexpr int kGradientBlocksAtOnce = OSDN_WGMMA ? 2 : 1;

/// On an H100 or H200; elsewhere what is brought to the L2 cache for a later block comes at another time.
constexpr unsigned kGradientBlocksOnDevice = kGradientBlocksAtOnce * 132;

/// One chunk and value head. `next`: the block that will follow this one on its multiprocessor.
template <int KP, int VT, bool kAnchored, class Products, class Log>
__device__ void channel_gradients_of(const ChannelPart<DeltaRuleChannelGradientsArgs>& args, int64_t slot,
                                     unsigned next) {
  using Part = ChannelGradients<KP, VT, kAnchored, Products, Log>;
  const DeltaRuleShape& shape = args.in.shape;
  const ChunkPlace place =
      place_of(shape, slot / shape.num_value_heads, static_cast<int>(slot % shape.num_value_heads));
  if (!place.exists) return;
  const Part part(args, dynamic_shared(), place, slot, static_cast<int>(threadIdx.x));
  part.keep_place();
  part.weigh_pairs();
  float d_q[Part::kBlocks][4] = {};
  float d_k[Part::kBlocks][4] = {};
  part.read_state(d_q, d_k);
  part.read_d_state();
  part.prepare_rows();
  part.add_columns(d_q, d_k);
  float d_write[Part::kBlocks][4] = {};
  part.add_rows(d_write);
  if constexpr (kAnchored && OSDN_WGMMA) part.prefetch_for(next);
  float products[Part::kBlocks][4];
  if constexpr (!kAnchored) part.leave_anchors(d_q, d_k, d_write, products);
  float q_dots[2] = {};
  float k_dots[2] = {};
  part.dot_rows(d_q, d_k, d_write, q_dots, k_dots);
  part.share_dots(0, q_dots);
  part.share_dots(1, k_dots);
  __syncthreads();  // so are the tiles of q, k and the write key done with, but for each lane's own numbers
  part.finish(d_q, d_k, d_write);
  __syncthreads();
  part.store_tile(args.d_q, part.q());
  part.store_tile(args.d_k, part.k());
  if (part.own_write_key) part.store_tile(args.d_write_key, part.w());
  __syncthreads();
  part.share_sums(Part::Memory::kPairSums, kAnchored ? d_q : products);
  part.share_sums(Part::Memory::kEndSums, d_write);
  __syncthreads();
  Part::from_kept(args, dynamic_shared()).finish_log_decay();
}

/// Whether one anchor serves every sub-block of a chunk and value head.
__device__ bool anchored_throughout(const ChannelPart<DeltaRuleChannelGradientsArgs>& args, int64_t slot) {
  return args.anchored[slot] == (1 << kSubBlocks) - 1;
}

template <int KP, int VT, class Products, class Log>
__global__ void __launch_bounds__(kChannelGradientThreads, kGradientBlocksAtOnce)
    delta_rule_channel_gradients_kernel(
        const __grid_constant__ ChannelPart<DeltaRuleChannelGradientsArgs> args) {
  const int64_t slot = slot_of_block(args.in.shape, blockIdx.x);
  if constexpr (Products::kAvailable)
    if (anchored_throughout(args, slot))
      channel_gradients_of<KP, VT, true, Products, Log>(args, slot, blockIdx.x + kGradientBlocksOnDevice);
}

struct StrongGradientsArgs {
  ChannelPart<DeltaRuleChannelGradientsArgs> gradients;
  int64_t count;   // chunks and value heads
  int64_t stride;  // blocks
};

/// The chunks that the kernel above leaves out. A block looks at every `stride`-th, a lane for each.
template <int KP, class Log>
__global__ void __launch_bounds__(kChannelGradientThreads, 1)
    delta_rule_channel_strong_gradients_kernel(const __grid_constant__ StrongGradientsArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t first = blockIdx.x; first < args.count; first += 32 * args.stride) {
    const int64_t mine = first + lane * args.stride;
    unsigned left =
        __ballot_sync(0xffffffffu, mine < args.count && !anchored_throughout(args.gradients, mine));
    for (int64_t slot = first; left != 0; slot += args.stride, left >>= 1) {
      if ((left & 1) == 0) continue;
      channel_gradients_of<KP, 64, false, WarpGradients, Log>(args.gradients, slot, 0);
      __syncthreads();  // its shared memory is done with
    }
  }
}

template <int KP, int VT, class Log>
void launch_channel_gradients(const ChannelPart<DeltaRuleChannelGradientsArgs>& args, CUstream_st* stream) {
  const int64_t count = args.in.shape.num_chunks * args.in.shape.num_value_heads;
  auto* kernel = delta_rule_channel_gradients_kernel<KP, VT, WarpGradients, Log>;
  if constexpr (KP == 128)
    if (has_warpgroups() && !args.in.portable)
      kernel = delta_rule_channel_gradients_kernel<KP, VT, WarpgroupGradients, Log>;
  launch_kernel(kernel, dim3(static_cast<unsigned>(count)), kChannelGradientThreads,
                ChannelGradientMemory<KP, VT>::kBytes, args, stream);
  const int64_t blocks = std::min<int64_t>(count, 2 * multiprocessors());
  launch_kernel(delta_rule_channel_strong_gradients_kernel<KP, Log>, dim3(static_cast<unsigned>(blocks)),
                kChannelGradientThreads, ChannelGradientMemory<KP, 64>::kBytes,
                StrongGradientsArgs{args, count, blocks}, stream);
}

struct ChannelNormsArgs {
  DeltaRuleShape shape;
  struct Vectors {
    DeltaRuleRows rows;                 // [N, H, K] as given
    const float* rstd = nullptr;        // [N, HV]
    __nv_bfloat16* gradient = nullptr;  // [N, HV, K]
  } of[2];                              // q and k
};

constexpr int kNormsThreads = 256;

/// Takes gradients of normalised vectors, times their norms, through the norms: d -= x rstd^2 <x, d>. A warp
/// a token and value head, eight channels a lane.
__global__ void __launch_bounds__(kNormsThreads)
    delta_rule_channel_norms_kernel(const __grid_constant__ ChannelNormsArgs args) {
  const ChannelNormsArgs::Vectors& of = args.of[blockIdx.y];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kNormsThreads / 32) + threadIdx.x / 32;
  const int channel = static_cast<int>(threadIdx.x % 32) * 8;
  if (row >= args.shape.num_tokens * args.shape.num_value_heads) return;
  const int64_t token = row / args.shape.num_value_heads;
  const int key_head = static_cast<int>(row % args.shape.num_value_heads) /
                       (args.shape.num_value_heads / args.shape.num_key_heads);
  const bool valid = channel < args.shape.key_size;
  auto* at = reinterpret_cast<uint4*>(of.gradient + row * args.shape.key_size + channel);
  uint4 x = {};
  uint4 d = {};
  if (valid) {
    x = __ldg(reinterpret_cast<const uint4*>(rows_at(of.rows, token, key_head) + channel));
    d = *at;
  }
  const float rstd = of.rstd[row];
  const float along = warp_sum(dot_of_pieces(x, d)) * rstd * rstd;
  const auto less = [along](uint32_t gradient, uint32_t vector) {
    const float2 g = unpack_bf16(gradient);
    const float2 v = unpack_bf16(vector);
    return pack_bf16(g.x - along * v.x, g.y - along * v.y);
  };
  if (valid) *at = make_uint4(less(d.x, x.x), less(d.y, x.y), less(d.z, x.z), less(d.w, x.w));
}

/// Keys above kDeltaRuleNarrowKeySize: a launch for each part of the channels, the norms of all afterwards.
template <class ByPart>
void launch_wide_gradients(const DeltaRuleChannelGradientsArgs& args, const ByPart& by_part,
                           CUstream_st* stream) {
  constexpr int kFirst = kDeltaRuleNarrowKeySize;
  for (const int first : {0, kFirst}) {
    ChannelPart<DeltaRuleChannelGradientsArgs> part = channel_part(args, first);
    part.normalize = false;
    part.chunk_decay += first;
    part.states += first * 8;
    part.d_states += first * 8;
    part.d_q += first;
    part.d_k += first;
    if (part.d_write_key != nullptr) part.d_write_key += first;
    if (first > 0) {  // of the values alone: the first part has written them
      part.d_v = nullptr;
      part.d_beta = nullptr;
    }
    part.d_log_decay = static_cast<char*>(args.d_log_decay) + first * (args.bf16_log_decay ? 2 : 4);
    by_part(part);
  }
  if (!args.normalize) return;
  const int64_t warps = args.in.shape.num_tokens * args.in.shape.num_value_heads;
  const auto blocks = static_cast<unsigned>((warps + kNormsThreads / 32 - 1) / (kNormsThreads / 32));
  launch_kernel(
      delta_rule_channel_norms_kernel, dim3(blocks, 2), kNormsThreads, 0,
      ChannelNormsArgs{.shape = args.in.shape,
                       .of = {{args.in.q, args.q_rstd, args.d_q}, {args.in.k, args.k_rstd, args.d_k}}},
      stream);
}

}  // namespace

void launch(const DeltaRuleChannelGradientsArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  if (shape.num_chunks * shape.num_value_heads == 0) return;
  const auto by_part = [&](const ChannelPart<DeltaRuleChannelGradientsArgs>& part) {
    by_key_size(part.in.shape, [&](auto padded) {
      constexpr int KP = decltype(padded)::value;
      const auto by_value_size = [&](auto log) {
        using Log = decltype(log);
        if (delta_rule_padded_value_size(shape.value_size) == 64)
          launch_channel_gradients<KP, 64, Log>(part, stream);
        else
          launch_channel_gradients<KP, 128, Log>(part, stream);
      };
      if (args.bf16_log_decay)
        by_value_size(__nv_bfloat16{});
      else
        by_value_size(float{});
    });
  };
  if (shape.key_size > kDeltaRuleNarrowKeySize)
    launch_wide_gradients(args, by_part, stream);
  else
    by_part({args, shape.key_size, delta_rule_padded_key_size(shape.key_size)});
}

}  // namespace osdn::kernels
