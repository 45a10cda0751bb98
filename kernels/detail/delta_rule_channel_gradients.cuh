// One block of the gradient pass with a decay a key channel: where its tiles lie, and what its parts
// (delta_rule_channel_bwd_gradients.cu) do with a warp's 16 tokens and half of the key channels.
#pragma once

#include "kernels/delta_rule_channel.h"
#include "kernels/detail/delta_rule_channel_block.cuh"

namespace osdn::kernels {

constexpr int kChannelGradientThreads = 256;
constexpr int kRowAnchor = 0;  // of the logarithms kept a sub-block and channel
constexpr int kColumnAnchor = 1;
constexpr int kTotal = 2;

template <int KP, int VT>
struct ChannelGradientMemory {
  static constexpr int kKeyBytes = kChunk * KP * 2;
  static constexpr int kValueBytes = kChunk * VT * 2;
  static constexpr int kLarger = kKeyBytes > kValueBytes ? kKeyBytes : kValueBytes;
  static constexpr int kStateBytes = KP * VT * 2 > 2 * kKeyBytes ? KP* VT * 2 : 2 * kKeyBytes;

  // Upstream dO and F, later q and k, later a gradient of a state; E; a state, later the write key and the
  // factors of the rows; the weights dP and dM, later sums of the sub-blocks; vectors.
  static constexpr int kUpstream = 0;
  static constexpr int kSolved = kLarger;
  static constexpr int kError = 2 * kLarger;
  static constexpr int kState = kError + kValueBytes;
  static constexpr int kWeights = kState + kStateBytes;
  static constexpr int kVectors = kWeights + 2 * TriangleTile::kBytes;  // beta, q_rstd, k_rstd
  static constexpr int kDots = kVectors + 3 * kVectorBytes;  // [2, 2, 64] by half of the channels, of q and k
  static constexpr int kLogs = kDots + 4 * kVectorBytes;     // [3, 4, KP] anchors and totals
  static constexpr int kThrough = kLogs + 3 * kSubBlocks * KP * 4;  // [256 / KP, KP]
  static constexpr int kBytes = kThrough + kChannelGradientThreads * 4;
  static_assert(KP * VT * 2 <= 2 * kLarger && 2 * kSubBlocks * KP * 4 <= 2 * TriangleTile::kBytes);
  static_assert(kBytes <= 99 * 1024);
};

/// One block of the kernel: what all of its parts need. `kAnchored`: one anchor serves each sub-block of the
/// chunk.
template <int KP, int VT, bool kAnchored>
struct ChannelGradients {
  using Memory = ChannelGradientMemory<KP, VT>;
  static constexpr int kBlocks = KP / 16;  // of eight channels, a warp's
  using Rows = float[kBlocks][4];

  /// Parts of dQ and dK from the earlier tokens of the same sub-block, where they are not in the
  /// accumulators.
  struct OwnPairs {
    float of_query[kAnchored ? 1 : kBlocks][4];
    float of_key[kAnchored ? 1 : kBlocks][4];
  };

  const DeltaRuleChannelGradientsArgs& args;
  const DeltaRuleShape& shape;
  const ChunkPlace place;
  const int64_t slot;
  const uint32_t base;
  const int warp;
  const int lane;
  const int sub_block;  // the warp's 16 tokens
  const int half;       // the warp's half of the channels
  const int first_row;
  const int row;  // and row + 8
  const int first_channel;
  const bool own_write_key;
  const bool anchored;          // the warp's sub-block
  const uint32_t lane_address;  // of its first two channels of `row` in the tile at `base`

  __device__ ChannelGradients(const DeltaRuleChannelGradientsArgs& given, uint32_t memory)
      : args(given),
        shape(given.in.shape),
        place(place_of(shape, blockIdx.x / shape.num_value_heads,
                       static_cast<int>(blockIdx.x % shape.num_value_heads))),
        slot(place.slot(shape)),
        base(memory),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        sub_block(warp & 3),
        half(warp >> 2),
        first_row(sub_block * kSubBlock),
        row(first_row + (lane >> 2)),
        first_channel(half * (KP / 2)),
        own_write_key(given.in.write_key.data != nullptr),
        anchored(kAnchored || ((given.anchored[slot] >> sub_block) & 1) != 0),
        lane_address(RowTile<KP>{base}.piece(row, first_channel) + (lane & 3) * 4) {}

  __device__ RowTile<VT> upstream() const { return {base + Memory::kUpstream}; }
  __device__ SquareTile solved() const { return {base + Memory::kSolved}; }   // [VT, 64]
  __device__ SquareTile error() const { return {base + Memory::kError}; }     // [VT, 64]
  __device__ BlockTile<KP> state() const { return {base + Memory::kState}; }  // [VT, KP]
  __device__ BlockTile<KP> d_state() const { return {base + Memory::kUpstream}; }
  __device__ RowTile<KP> q() const { return {base + Memory::kUpstream}; }
  __device__ RowTile<KP> k() const { return {base + Memory::kSolved}; }
  __device__ RowTile<KP> w() const { return {base + Memory::kState}; }
  __device__ RowTile<KP> factors() const { return {base + Memory::kState + Memory::kKeyBytes}; }
  __device__ TriangleTile weights(int of) const {
    return {base + Memory::kWeights + of * TriangleTile::kBytes};
  }
  __device__ uint32_t beta() const { return base + Memory::kVectors; }
  __device__ uint32_t q_rstd() const { return beta() + kVectorBytes; }
  __device__ uint32_t k_rstd() const { return beta() + 2 * kVectorBytes; }
  __device__ uint32_t dot(int of_half, int of) const {
    return base + Memory::kDots + (of_half * 2 + of) * kVectorBytes;
  }
  __device__ uint32_t logs(int which, int block, int channel) const {
    return base + Memory::kLogs + ((which * kSubBlocks + block) * KP + channel) * 4;
  }
  __device__ float2 log_pair(int which, int block, int channel) const {
    return read_shared_2(logs(which, block, channel));
  }
  __device__ ChannelVectors vectors() const { return {args.in, args.log_decay, place, q_rstd(), k_rstd()}; }
  /// First of this lane's two channels in block n of the warp's.
  __device__ int channel(int n) const { return first_channel + n * 8 + (lane & 3) * 2; }
  __device__ LogDecays load_log_decays(int n) const {
    return {args.log_decay, shape, place, first_row, channel(n), lane};
  }
  __device__ float row_value(uint32_t address, int i) const {
    return read_shared(address + (row + i * 8) * 4);
  }
  /// The chunk's first row of a [N, HV, size] array, and how far another row lies from it: 32 bits to keep
  /// 64-bit arithmetic out of the loops.
  template <typename T>
  __device__ T* chunk_of(T* array, int size) const {
    return array + (place.token * shape.num_value_heads + place.head) * size;
  }
  __device__ uint32_t row_offset(int chunk_row, int size) const {
    return static_cast<uint32_t>(chunk_row) * static_cast<uint32_t>(shape.num_value_heads * size);
  }
  __device__ int value_tiles() const { return delta_rule_padded_value_size(shape.value_size) / VT; }

  __device__ void copy_scan_tiles(int tile) const {
    copy_rows_async<kChannelGradientThreads>(upstream(),
                                             rows_at(args.d_o, place.token, place.head) + tile * VT,
                                             args.d_o.token_stride, place.rows, shape.value_size - tile * VT);
    copy_flat_async<kChannelGradientThreads, Memory::kValueBytes>(
        solved().base, args.solved + (slot * value_tiles() + tile) * VT * kChunk);
  }
  __device__ void copy_error(int tile) const {
    copy_flat_async<kChannelGradientThreads, Memory::kValueBytes>(
        error().base, args.error + (slot * value_tiles() + tile) * VT * kChunk);
  }
  __device__ const __nv_bfloat16* state_tile(const __nv_bfloat16* states, int tile) const {
    return states + (slot * value_tiles() + tile) * VT * KP;
  }
  __device__ void copy_state(const BlockTile<KP>& target, const __nv_bfloat16* states, int tile) const {
    copy_flat_async<kChannelGradientThreads, KP * VT * 2>(target.base, state_tile(states, tile));
  }
  __device__ static void arrived() {
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
  }

  /// Products of dO and F with E: the weights dP and dM (eq. 8) and, on the diagonal, the gradient of beta.
  /// Half of the warps take dO, half F. The state is there at the end where it comes in one tile.
  __device__ void weigh_pairs() const;

  /// What reads the state: scale dO S^T and -beta F S^T, and with the latter dV = beta F; and the sums over
  /// value channels of the state before the chunk times the gradient after it.
  __device__ void read_state(Rows& d_q, Rows& d_k) const;

  __device__ void store_d_v(const uint32_t (&solved_rows)[4], int value_channel,
                            const float (&betas)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      store_two_blocks(chunk_of(args.d_v, shape.value_size),
                       row_offset(row + i * 8, shape.value_size) + value_channel,
                       scaled_pair(solved_rows[i], betas[i], betas[i]),
                       scaled_pair(solved_rows[2 + i], betas[i], betas[i]),
                       row + i * 8 < place.rows && value_channel < shape.value_size, lane);
  }

  /// Tiles of q, k and the write key, normalised and decayed to their anchors, the factors of the rows, and
  /// the steps between anchors.
  __device__ void prepare_rows() const;

  // Decays between anchors. With one anchor a sub-block they are five factors a channel: from the chunk's
  // start to the first anchor, from each to the next, and from the last to the chunk's end; otherwise they
  // are made from the logarithms.
  __device__ float2 step(int index, int lane_channel) const { return log_pair(0, index, lane_channel); }
  __device__ void make_steps() const {
    if constexpr (kAnchored) {
      if (threadIdx.x < KP) {
        const int channel_of = static_cast<int>(threadIdx.x);
        float before = 0.0f;  // from the anchor of the previous sub-block to its end
        float out[kSubBlocks];
#pragma unroll
        for (int block = 0; block < kSubBlocks; ++block) {
          const float anchor = read_shared(logs(kRowAnchor, block, channel_of));
          out[block] = exp2_approx(before + anchor);
          before = read_shared(logs(kTotal, block, channel_of)) - anchor;
        }
#pragma unroll
        for (int block = 0; block < kSubBlocks; ++block) write_shared(logs(0, block, channel_of), out[block]);
        write_shared(logs(0, kSubBlocks, channel_of), exp2_approx(before));
      }
      __syncthreads();
    }
  }

  /// To the column anchor of sub-block `block`, or the row anchor of the warp's own, from the column anchor
  /// before it or the chunk's start.
  __device__ float2 column_step(int block, int lane_channel) const {
    if constexpr (kAnchored) return step(block, lane_channel);
    float2 exponent = log_pair(block == sub_block ? kRowAnchor : kColumnAnchor, block, lane_channel);
    if (block > 0) exponent = sum(exponent, from_column_anchor(block - 1, lane_channel));
    return powers(exponent);
  }
  /// From the row anchor after sub-block `block`, or the chunk's end, to its own, or to the warp's column
  /// anchor.
  __device__ float2 row_step(int block, int lane_channel) const {
    if constexpr (kAnchored) return step(block + 1, lane_channel);
    const float2 anchor = log_pair(block == sub_block ? kColumnAnchor : kRowAnchor, block, lane_channel);
    float2 exponent = sum(log_pair(kTotal, block, lane_channel), make_float2(-anchor.x, -anchor.y));
    if (block + 1 < kSubBlocks) exponent = sum(exponent, log_pair(kRowAnchor, block + 1, lane_channel));
    return powers(exponent);
  }
  /// From the warp's column anchor to the chunk's end.
  __device__ float2 step_to_end(int lane_channel) const {
    float2 out = kAnchored ? make_float2(1.0f, 1.0f) : from_column_anchor(sub_block, lane_channel);
#pragma unroll
    for (int block = 0; block < kSubBlocks; ++block) {
      if (kAnchored && block >= sub_block) out = product(out, step(block + 1, lane_channel));
      if (!kAnchored && block > sub_block) out = sum(out, log_pair(kTotal, block, lane_channel));
    }
    return kAnchored ? out : powers(out);
  }
  /// Logarithm of the decay from the column anchor of a sub-block to its end.
  __device__ float2 from_column_anchor(int block, int lane_channel) const {
    const float2 anchor = log_pair(kColumnAnchor, block, lane_channel);
    return sum(log_pair(kTotal, block, lane_channel), make_float2(-anchor.x, -anchor.y));
  }

  __device__ static float2 sum(float2 x, float2 y) { return make_float2(x.x + y.x, x.y + y.y); }
  __device__ static float2 product(float2 x, float2 y) { return make_float2(x.x * y.x, x.y * y.y); }
  __device__ static float2 powers(float2 x) { return make_float2(exp2_approx(x.x), exp2_approx(x.y)); }
  __device__ static void decay(float (&x)[4], float2 factor) {
    x[0] *= factor.x;
    x[1] *= factor.y;
    x[2] *= factor.x;
    x[3] *= factor.y;
  }

  /// Rows of dQ and dK before the factors from the anchor: what reads the state, then the columns.
  __device__ void add_columns(Rows& d_q, Rows& d_k) const;

  /// Where this lane's two channels of block n of token row + 8 i lie in a tile: one exclusive or a block.
  __device__ uint32_t tile_address(const RowTile<KP>& tile, int n, int i) const {
    return (lane_address ^ (n << 4)) + (tile.base - base) + i * (8 * 128);
  }
  __device__ float2 tile_pair(const RowTile<KP>& tile, int n, int i) const {
    return unpack_bf16(read_shared_bits(tile_address(tile, n, i)));
  }
  /// Factors from the row anchor to the tokens, and from the tokens to the column anchor.
  __device__ void load_row_factors(float (&out)[4], int n) const {
    if constexpr (kAnchored) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 f = tile_pair(factors(), n, i);
        out[2 * i] = f.x;
        out[2 * i + 1] = f.y;
      }
    } else {
      const BlockLogs sums(load_log_decays(n), lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = sums.row_factor(i, anchored);
    }
  }
  __device__ void load_column_factors(float (&out)[4], int n) const {
    if constexpr (kAnchored) {
      load_row_factors(out, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = reciprocal(out[i]);
    } else {
      const BlockLogs sums(load_log_decays(n), lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = sums.column_factor(i, anchored);
    }
  }

  /// Products of the rows of dQ and dK with the normalised vectors, for the norms. Where no one anchor serves
  /// the sub-block, `pairs` take what its own pairs give.
  __device__ void dot_rows(const Rows& d_q, const Rows& d_k, OwnPairs& pairs, float (&q_dots)[2],
                           float (&k_dots)[2]) const;

  /// Stores dQ and, with a write key of its own, dK. d_q becomes the products by row and channel, for the
  /// decay; d_k becomes zero or, without such a write key, dK with respect to the normalised key.
  __device__ void finish_rows(Rows& d_q, Rows& d_k, const OwnPairs& pairs) const;

  /// What a query's pair with its own token gives dQ where its sub-block has no anchor.
  __device__ float self_query(int n, int i) const {
    if (anchored) return 0.0f;
    const int token = row + (i >> 1) * 8;
    const float2 write = vectors().write(token, channel(n));
    return weight_at(weights(0), token, token) * (i & 1 ? write.y : write.x);
  }

  /// Adds to d_write what later rows of the chunk give, at the warp's column anchor.
  __device__ void add_rows(Rows& d_write) const;

  /// The part of dW through later rows added to d_key. `products` becomes the sums for the decay's gradient
  /// from each token of the sub-block on. Returns the lane's share of their totals: those of block n in the
  /// lanes with g = n.
  __device__ float2 finish_columns(Rows& d_key, const Rows& d_write, Rows& products,
                                   float (&k_dots)[2]) const;

  /// beta E dS^T: what the gradient of the state after the chunk gives the write keys.
  __device__ void read_d_state(Rows& d_end) const;

  /// Adds that part of dW to d_key, and to `sums` the products of the sub-block's tokens before each. Returns
  /// their totals likewise.
  __device__ float2 finish_end(Rows& d_key, Rows& d_end, Rows& sums, float (&k_dots)[2]) const;

  /// The gradient of the log-decay from the warps' sums: in order of tokens, later rows and earlier columns.
  __device__ void finish_log_decay(const Rows& sums, uint32_t row_totals, uint32_t column_totals) const;

  /// The sums over both halves of the channels.
  __device__ void share_dots(int of, float (&dots)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2)
        dots[i] += __shfl_xor_sync(0xffffffffu, dots[i], distance);
      if ((lane & 3) == 0) write_shared(dot(half, of) + (row + i * 8) * 4, dots[i]);
    }
  }

  /// The normalised query (`of` 0) or key at two channels of token row + 8 i: from the tiles, where q and k
  /// are anchored as rows and a write key that is the key as a column.
  __device__ float2 unit_pair(int of, int n, int i) const {
    if constexpr (!kAnchored)
      return of == 0 ? vectors().query(row + i * 8, channel(n)) : vectors().key(row + i * 8, channel(n));
    const float2 factor = tile_pair(factors(), n, i);
    if (of == 1 && !own_write_key) return product(tile_pair(w(), n, i), factor);
    const float2 x = tile_pair(of == 0 ? q() : k(), n, i);
    return make_float2(x.x * reciprocal(factor.x), x.y * reciprocal(factor.y));
  }

  /// The factor of the normalised vector in the gradient through the norm, of dQ (`of` 0) or dK, for token
  /// row
  /// + 8 i; share_dots has been met by a barrier.
  __device__ float along(int of, int i) const {
    const int token = row + i * 8;
    return args.normalize ? read_shared(dot(0, of) + token * 4) + read_shared(dot(1, of) + token * 4) : 0.0f;
  }

  /// dK through the norm to global memory.
  __device__ void store_key(const Rows& d) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float rstd = row_value(k_rstd(), i);
      const float part = along(1, i);
#pragma unroll
      for (int n = 0; n < kBlocks; n += 2) {
        uint32_t words[2];
#pragma unroll
        for (int next = 0; next < 2; ++next) {
          const float2 y = unit_pair(1, n + next, i);
          words[next] = pack_bf16(rstd * (d[n + next][2 * i] - y.x * part),
                                  rstd * (d[n + next][2 * i + 1] - y.y * part));
        }
        store_blocks_of(args.d_k, row + i * 8, n, words[0], words[1]);
      }
    }
  }

  __device__ void store_plain(__nv_bfloat16* target, const Rows& d) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < kBlocks; n += 2)
        store_blocks_of(target, row + i * 8, n, pack_bf16(d[n][2 * i], d[n][2 * i + 1]),
                        pack_bf16(d[n + 1][2 * i], d[n + 1][2 * i + 1]));
  }

  __device__ void store_blocks_of(__nv_bfloat16* target, int token, int n, uint32_t first,
                                  uint32_t second) const {
    const int block_channel = first_channel + n * 8;
    store_two_blocks(chunk_of(target, shape.key_size), row_offset(token, shape.key_size) + block_channel,
                     first, second, token < place.rows && block_channel < shape.key_size, lane);
  }

  /// Totals a lane holds for block n = g to [4, KP] floats at `address`.
  __device__ void share_totals(uint32_t address, float2 totals) const {
    const int n = lane >> 2;
    if (n < kBlocks) write_shared_2(address + (sub_block * KP + channel(n)) * 4, totals.x, totals.y);
  }
};

}  // namespace osdn::kernels
