// One block of the gradient pass with a decay a key channel: where its tiles lie, and what its parts
// (delta_rule_channel_bwd_gradients.cu) do with a warp's 16 tokens and half of the key channels.
#pragma once

#include "kernels/delta_rule_channel.h"
#include "kernels/detail/delta_rule_channel_block.cuh"
#include "kernels/detail/delta_rule_gradient_products.cuh"

namespace osdn::kernels {

constexpr int kChannelGradientThreads = 256;
constexpr int kRowAnchor = 0;  // of the logarithms kept a sub-block and channel
constexpr int kColumnAnchor = 1;
constexpr int kTotal = 2;
constexpr int kToEnd = 2;  // of the factors that replace them where one anchor serves each sub-block

template <int KP, int VT>
struct ChannelGradientMemory {
  static constexpr int kKeyBytes = kChunk * KP * 2;
  static constexpr int kValueBytes = kChunk * VT * 2;
  static constexpr int kLarger = kKeyBytes > kValueBytes ? kKeyBytes : kValueBytes;
  static constexpr int kStateBytes = KP * VT * 2 > 2 * kKeyBytes ? KP* VT * 2 : 2 * kKeyBytes;
  static constexpr int kSumPitch = KP + 8;  // floats a row: neighbouring rows fall into different banks
  static constexpr int kSumBytes = kChunk * kSumPitch * 4;

  // Upstream dO and F, then the gradient of the state, then q and k, which become dQ and dK; E, then its
  // product with that gradient; the state, then the write key, which becomes dW, and the factors of the rows;
  // the weights dP and dM; vectors. At the end two tables of fp32 sums for the decay lie over all of it.
  static constexpr int kUpstream = 0;
  static constexpr int kSolved = kLarger;
  static constexpr int kError = 2 * kLarger;
  static constexpr int kState = 3 * kLarger;
  static constexpr int kWeights = kState + kStateBytes;
  static constexpr int kVectors = kWeights + 2 * TriangleTile::kBytes;  // beta, q_rstd, k_rstd
  static constexpr int kDots = kVectors + 3 * kVectorBytes;  // [2, 2, 64] by half of the channels, of q and k
  static constexpr int kLogs = kDots + 4 * kVectorBytes;     // [3, 4, KP] anchors and totals
  static constexpr int kThrough = kLogs + 3 * kSubBlocks * KP * 4;       // [256 / KP, KP]
  static constexpr int kPlace = kThrough + kChannelGradientThreads * 4;  // what `keep_place` keeps
  static constexpr int kBytes = kPlace + 32;
  static constexpr int kPairSums = kUpstream;
  static constexpr int kEndSums = kState;
  static_assert(KP * VT * 2 <= 2 * kLarger);
  static_assert(kSumBytes <= kState && kSumBytes <= kVectors - kState);
  static_assert(kBytes <= 99 * 1024);
};

/// One block of the kernel: what all of its parts need. `kAnchored`: one anchor serves each sub-block of the
/// chunk. `Log`: the type of log-decays and of their gradients.
template <int KP, int VT, bool kAnchored, class Products, class Log>
struct ChannelGradients {
  using Memory = ChannelGradientMemory<KP, VT>;
  static constexpr int kBlocks = KP / 16;    // of eight channels, a warp's
  static constexpr int kWalkLanes = KP / 4;  // with two of the warp's channels each, for all of its tokens
  using Rows = float[kBlocks][4];

  const ChannelPart<DeltaRuleChannelGradientsArgs>& args;
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

  __device__ ChannelGradients(const ChannelPart<DeltaRuleChannelGradientsArgs>& given, uint32_t memory,
                              const ChunkPlace& given_place, int64_t given_slot, int thread)
      : args(given),
        shape(given.in.shape),
        place(given_place),
        slot(given_slot),
        base(memory),
        warp(thread / 32),
        lane(thread % 32),
        sub_block(warp & 3),
        half(warp >> 2),
        first_row(sub_block * kSubBlock),
        row(first_row + (lane >> 2)),
        first_channel(half * (KP / 2)),
        own_write_key(given.in.write_key.data != nullptr),
        anchored(kAnchored || ((given.anchored[slot] >> sub_block) & 1) != 0),
        lane_address(RowTile<KP>{base}.piece(row, first_channel) + (lane & 3) * 4) {}

  /// Keeps the chunk's place, which the products leave no registers for. By the block's first thread; the
  /// parts after a barrier may begin anew from it.
  __device__ void keep_place() const {
    if (threadIdx.x != 0) return;
    const uint32_t at = base + Memory::kPlace;
    write_shared_bits(at, static_cast<uint32_t>(place.token));
    write_shared_bits(at + 4, static_cast<uint32_t>(place.token >> 32));
    write_shared_bits(at + 8, static_cast<uint32_t>(slot));
    write_shared_bits(at + 12, static_cast<uint32_t>(slot >> 32));
    write_shared_bits(at + 16, static_cast<uint32_t>(place.rows));
    write_shared_bits(at + 20, static_cast<uint32_t>(place.head));
    write_shared_bits(at + 24, static_cast<uint32_t>(place.key_head));
    write_shared_bits(at + 28, static_cast<uint32_t>(place.chunk));  // no more than there are blocks
  }
  __device__ static ChannelGradients from_kept(const ChannelPart<DeltaRuleChannelGradientsArgs>& given,
                                               uint32_t memory) {
    const uint4 numbers = read_shared_piece(memory + Memory::kPlace);
    const uint4 heads = read_shared_piece(memory + Memory::kPlace + 16);
    const auto whole = [](uint32_t low, uint32_t high) {
      return static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low);
    };
    return {given, memory,
            ChunkPlace(heads.w, whole(numbers.x, numbers.y), static_cast<int>(heads.x),
                       static_cast<int>(heads.y), static_cast<int>(heads.z)),
            whole(numbers.z, numbers.w), copying_thread()};
  }

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
  __device__ GradientRows<VT> scan_rows() const { return {upstream(), solved()}; }
  __device__ float2 log_pair(int which, int block, int channel) const {
    return read_shared_2(logs(which, block, channel));
  }
  __device__ const Log* log_decay() const { return static_cast<const Log*>(args.log_decay); }
  __device__ ChannelVectors<Log> vectors() const { return {args, place, q_rstd(), k_rstd()}; }
  /// First of this lane's two channels in block n of the warp's.
  __device__ int channel(int n) const { return first_channel + n * 8 + (lane & 3) * 2; }
  /// First of its two channels where a lane walks through the warp's tokens.
  __device__ int walk_channel() const { return first_channel + 2 * lane; }
  /// Where they lie in a tile at the warp's token r: one exclusive or a row.
  __device__ uint32_t walk_address(const RowTile<KP>& tile, int r) const {
    const uint32_t first = tile.piece(first_row, walk_channel() & ~7) + (walk_channel() & 7) * 2;
    return (first ^ ((r & 7) << 4)) + r * 128;
  }
  // Where this lane's fragments begin, so that the loops over sub-blocks hold one address each. Of a row tile
  // (load_b_of_columns) at the warp's channels and token 0: an exclusive or takes it to other channels.
  __device__ uint32_t column_fragments(const RowTile<KP>& tile) const {
    return tile.piece(lane & 15, first_channel + (lane >> 4) * 8);
  }
  __device__ static void load_columns(uint32_t (&out)[4], uint32_t fragments, int pair, int block) {
    load_blocks_transposed(out, (fragments ^ (pair << 5)) + block * (kSubBlock * 128));
  }
  /// Of the weights (load_a_of_rows) of the warp's rows and sub-block 0: 512 bytes on is the next one.
  __device__ uint32_t row_weight_fragments() const {
    return weights(0).piece(first_row + (lane & 15), (lane >> 4) * 8);
  }
  /// Of the weights (load_a_of_columns) of the warp's columns and the rows of sub-block `block`.
  __device__ uint32_t column_weight_fragments(int block) const {
    return weights(0).piece(block * kSubBlock + (lane >> 4) * 8 + (lane & 7),
                            first_row + ((lane >> 3) & 1) * 8);
  }

  __device__ uint32_t sum_address(int table, int token, int of_channel) const {
    return base + table + (token * Memory::kSumPitch + of_channel) * 4;
  }
  __device__ LogDecays load_log_decays(int n) const {
    return {args, log_decay(), place, first_row, channel(n), lane};
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

  /// Brings rows of `Columns` numbers, one a token, to the L2 cache.
  template <int Columns, typename T>
  __device__ void prefetch_rows(const T* source, int64_t stride) const {
    constexpr int kNumbers = 128 / sizeof(T);
    constexpr int kLines = Columns / kNumbers;  // of a row
    static_assert(kChunk * kLines % kChannelGradientThreads == 0 ||
                  kChunk * kLines < kChannelGradientThreads);
#pragma unroll
    for (int first = 0; first < kChunk * kLines; first += kChannelGradientThreads) {
      const int line = first + copying_thread();
      const int token = line / kLines;
      const int column = line % kLines * kNumbers;
      if (token < place.rows && column < shape.key_size) prefetch_line(source + token * stride + column);
    }
  }
  /// What later parts copy, when there is room for it.
  __device__ void prefetch() const {
    constexpr int kLines = KP * VT * 2 / 128;
    const auto* after = reinterpret_cast<const char*>(state_tile(args.d_states, 0));
#pragma unroll
    for (int first = 0; first < kLines; first += kChannelGradientThreads)
      if (first + copying_thread() < kLines)
        prefetch_line(after + state_bytes((first + copying_thread()) * 8));
    prefetch_rows<KP>(rows_at(args.in.q, place.token, place.key_head), args.in.q.token_stride);
    prefetch_rows<KP>(rows_at(args.in.k, place.token, place.key_head), args.in.k.token_stride);
    if (own_write_key)
      prefetch_rows<KP>(rows_at(args.in.write_key, place.token, place.head), args.in.write_key.token_stride);
    prefetch_rows<KP>(chunk_of(log_decay(), args.row_size), row_offset(1, args.row_size));
  }

  /// Brings what another block waits for first to the L2 cache: E, F, dO and the state of its first tile, and
  /// its vectors.
  __device__ void prefetch_for(unsigned block) const {
    if (block >= gridDim.x) return;
    const int64_t next = slot_of_block(shape, block);
    const auto chunk = static_cast<unsigned>(next) / static_cast<unsigned>(shape.num_value_heads);
    const int thread = copying_thread();
    const auto prefetch_flat = [thread](const void* source, int first, int lines) {
      if (thread >= first && thread - first < lines)
        prefetch_line(static_cast<const char*>(source) + (thread - first) * 128);
    };
    prefetch_flat(args.error + next * value_tiles() * VT * kChunk, 0, VT);
    prefetch_flat(args.solved + next * value_tiles() * VT * kChunk, 128, VT);
    constexpr int kStateLines = KP * VT * 2 / 128;
    static_assert(VT <= 128 && kStateLines <= kChannelGradientThreads);
    if (thread < kStateLines)
      prefetch_line(
          reinterpret_cast<const char*>(args.states + next * value_tiles() * VT * args.padded_size) +
          state_bytes(thread * 8));
    const int64_t sequence = shape.chunk_sequences[chunk];
    const int64_t token = shape.offsets[sequence] + (chunk - shape.chunk_offsets[sequence]) * kChunk;
    const int head = static_cast<int>(next - static_cast<int64_t>(chunk) * shape.num_value_heads);
    const int row = thread % kChunk;
    if (token + row >= shape.offsets[sequence + 1]) return;
    const int64_t at = (token + row) * shape.num_value_heads + head;
    const int part = thread / kChunk;
    if (part < VT / 64) prefetch_line(rows_at(args.d_o, token + row, head) + part * 64);
    if (part == 0) prefetch_line(args.q_rstd + at);
    if (part == 1) prefetch_line(args.k_rstd + at);
    if (part == 2) prefetch_line(args.in.beta + at);
  }

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
    return states + (slot * value_tiles() + tile) * VT * args.padded_size;
  }
  /// From there to the `piece`-th 16 bytes of the tile: the blocks of eight value channels are KP long of
  /// padded_size.
  __device__ int state_bytes(int piece) const { return (piece / KP * args.padded_size + piece % KP) * 16; }
  __device__ void copy_state(const BlockTile<KP>& target, const __nv_bfloat16* states, int tile) const {
    const auto* from = reinterpret_cast<const char*>(state_tile(states, tile));
    constexpr int kPieces = KP * VT / 8;
#pragma unroll
    for (int first = 0; first < kPieces; first += kChannelGradientThreads) {
      const int piece = first + copying_thread();
      copy_async_16(target.base + piece * 16, from + state_bytes(piece), true);
    }
  }
  __device__ static void arrived() {
    copy_async_commit();
    copy_async_wait<0>();
    Products::publish_shared();
    __syncthreads();
  }

  // Where one anchor serves each sub-block the norms of rows and columns are in their weights, not in the
  // rows.
  static constexpr bool kFolded = kAnchored;
  /// What rows of dO or F are multiplied by.
  __device__ float row_weight(bool of_query, int i) const {
    const float weight = of_query ? args.in.scale : -row_value(beta(), i);
    return kFolded ? weight * row_value(of_query ? q_rstd() : k_rstd(), i) : weight;
  }
  /// What columns of E are multiplied by, two of block n.
  __device__ float2 column_weights(int n) const {
    const float2 betas = column_pair(beta(), n, lane);
    return kFolded && !own_write_key ? product(betas, column_pair(k_rstd(), n, lane)) : betas;
  }

  /// All copies but the last group's.
  __device__ static void arrived_but_last() {
    copy_async_wait<1>();
    Products::publish_shared();
    __syncthreads();
  }

  /// Products of dO and F with E: the weights dP and dM (eq. 8) and, on the diagonal, the gradient of beta.
  /// Half of the warps take dO, half F. The state is there at the end where it comes in one tile.
  __device__ void weigh_pairs() const;

  /// What reads the state: scale dO S^T and -beta F S^T, and with the latter dV = beta F.
  __device__ void read_state(Rows& d_q, Rows& d_k) const;

  /// beta E dS^T, what the gradient of the state after the chunk gives the write keys, rounded to shared
  /// memory; and the sums over value channels of the state before the chunk times that gradient.
  __device__ void read_d_state() const;
  __device__ void store_through(float (&through)[8]) const;
  __device__ void add_state_products(float (&through)[8]) const;
  /// Tiles of q and k as they are given.
  __device__ void queue_rows() const {
    copy_rows_async<kChannelGradientThreads>(q(), rows_at(args.in.q, place.token, place.key_head),
                                             args.in.q.token_stride, place.rows, shape.key_size);
    copy_rows_async<kChannelGradientThreads>(k(), rows_at(args.in.k, place.token, place.key_head),
                                             args.in.k.token_stride, place.rows, shape.key_size);
  }
  __device__ uint32_t end_address(int n, int i) const {
    return base + Memory::kError + ((warp * kBlocks + n) * 2 + i) * 128 + lane * 4;
  }

  __device__ void store_d_v(const uint32_t (&solved_rows)[4], int value_channel,
                            const float (&betas)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      store_two_blocks(
          chunk_of(args.d_v, shape.value_size), row_offset(row + i * 8, shape.value_size) + value_channel,
          scaled_pair(solved_rows[i], betas[i], betas[i]),
          scaled_pair(solved_rows[2 + i], betas[i], betas[i]),
          args.d_v != nullptr && row + i * 8 < place.rows && value_channel < shape.value_size, lane);
  }

  /// Tiles of q, k and the write key, normalised and decayed to their anchors, the factors of the rows, and
  /// the steps between anchors.
  __device__ void prepare_rows() const;

  // Decays between anchors. With one anchor a sub-block they are five factors a channel: from the chunk's
  // start to the first anchor, from each to the next, and from the last to the chunk's end, and with them the
  // products of those from each anchor to the end; otherwise they are made from the logarithms.
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
        float to_end = exp2_approx(before);
        write_shared(logs(0, kSubBlocks, channel_of), to_end);
#pragma unroll
        for (int block = kSubBlocks - 1; block >= 0; --block) {
          write_shared(logs(0, block, channel_of), out[block]);
          write_shared(logs(kToEnd, block, channel_of), to_end);
          to_end *= out[block];
        }
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
    if constexpr (kAnchored) return log_pair(kToEnd, sub_block, lane_channel);
    float2 out = from_column_anchor(sub_block, lane_channel);
    for (int block = sub_block + 1; block < kSubBlocks; ++block)
      out = sum(out, log_pair(kTotal, block, lane_channel));
    return powers(out);
  }
  /// Logarithm of the decay from the column anchor of a sub-block to its end.
  __device__ float2 from_column_anchor(int block, int lane_channel) const {
    const float2 anchor = log_pair(kColumnAnchor, block, lane_channel);
    return sum(log_pair(kTotal, block, lane_channel), make_float2(-anchor.x, -anchor.y));
  }

  __device__ static float2 sum(float2 x, float2 y) { return make_float2(x.x + y.x, x.y + y.y); }
  __device__ static float2 difference(float2 x, float2 y) { return make_float2(x.x - y.x, x.y - y.y); }
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

  /// Adds to d_write what later rows of the chunk give, at the warp's column anchor.
  __device__ void add_rows(Rows& d_write) const;

  /// Without one anchor for each sub-block: takes the gradients from their anchors to their tokens, adds the
  /// pairs within a sub-block that has none and, to d_write, what the chunk's end gives. `products` becomes
  /// those by row and channel of rows less columns, for the decay.
  __device__ void leave_anchors(Rows& d_q, Rows& d_k, Rows& d_write, Rows& products) const;

  /// q, k or the write key (`of` 0, 1, 2) at two channels of token row + 8 i, normalised, with the factor by
  /// which the accumulators of its gradient are short.
  __device__ float2 vector_pair(int of, int n, int i) const {
    if constexpr (kAnchored) return tile_pair(of == 0 ? q() : of == 1 ? k() : w(), n, i);
    return of == 0   ? vectors().query(row + i * 8, channel(n))
           : of == 1 ? vectors().key(row + i * 8, channel(n))
                     : vectors().write(row + i * 8, channel(n));
  }
  /// The part of dW from the chunk's end, at the warp's column anchor.
  __device__ float2 end_pair(int n, int i) const {
    return product(unpack_bf16(read_shared_bits(end_address(n, i))), step_to_end(channel(n)));
  }

  /// Products of dQ and dK with the normalised vectors, for the norms.
  __device__ void dot_rows(const Rows& d_q, const Rows& d_k, const Rows& d_write, float (&q_dots)[2],
                           float (&k_dots)[2]) const;

  /// dQ, dK and dW, through the norms, to the places of q, k and the write key. d_q becomes the products for
  /// the decay of rows less columns, d_write those of columns with what the chunk's end gives.
  __device__ void finish(Rows& d_q, const Rows& d_k, Rows& d_write) const;

  /// A tile of gradients to global memory, 16 bytes a lane.
  __device__ void store_tile(__nv_bfloat16* target, const RowTile<KP>& tile) const {
    constexpr int kPieces = KP / 8;
    constexpr int kStep = kChannelGradientThreads / kPieces;
    const int thread = copying_thread();
    const int of_channel = thread % kPieces * 8;
    const int first = thread / kPieces;
    const uint32_t source = tile.piece(first, of_channel);
    const int limit = of_channel < shape.key_size ? place.rows : 0;
    __nv_bfloat16* to = chunk_of(target, args.row_size) + of_channel;
#pragma unroll
    for (int token = 0; token < kChunk; token += kStep)
      if (first + token < limit)
        *reinterpret_cast<uint4*>(to + row_offset(first + token, args.row_size)) =
            read_shared_piece(source + token * 128);
  }

  __device__ void share_sums(int table, const Rows& sums) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        write_shared_2(sum_address(table, row + i * 8, channel(n)), sums[n][2 * i], sums[n][2 * i + 1]);
  }

  /// The gradient of the log-decay from the tables of products: later tokens of the one, earlier of the
  /// other.
  __device__ void finish_log_decay() const;

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

  /// The factor of the normalised vector in the gradient through the norm, of dQ (`of` 0) or dK, for token
  /// row + 8 i; share_dots has been met by a barrier.
  __device__ float along(int of, int i) const {
    const int token = row + i * 8;
    return args.normalize ? read_shared(dot(0, of) + token * 4) + read_shared(dot(1, of) + token * 4) : 0.0f;
  }
};

}  // namespace osdn::kernels
