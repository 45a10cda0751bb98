// First pass of the delta rule with a decay a key channel (docs/ops/delta_rule.md, "Decay by channel"): what
// of a chunk does not depend on the state, one block of four warps a (chunk, value head), 16 tokens a warp.
//
// Rows of q and k carry the decays since the start of their 16 tokens, columns of the write key the inverse
// of those. For the rows of later blocks columns are multiplied by what decays until the end of theirs and
// between. From the first token on at which some channel has decayed by more than the range of bf16 allows,
// columns carry the decays until the end, and their pairs within the 16 tokens are added one by one. So no
// output depends on the decay of a later token, in bits.
#include "kernels/common/warp.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/delta_rule_channel.h"
#include "kernels/detail/delta_rule_channel.cuh"
#include "kernels/detail/delta_rule_inverse.cuh"

namespace osdn::kernels {
namespace {

constexpr float kChannelNormEpsilon = 1e-6f;  // inside the root

// Logarithms to base 2. Columns within 16 tokens may have decayed by 16 times the usual floor of e^-5; they
// are made smaller and rows larger by powers of two, so that keys of any size stay in range and rows keep
// their digits where a column is still among them.
constexpr float kLargestColumn = 80.5f * kLog2E;
constexpr float kRowExponent = 24.0f;
constexpr float kColumnExponent = -40.0f;
constexpr float kRowScale = 1.0f / (1 << 24);                  // takes the rows' power back
constexpr float kDiagonalScale = static_cast<float>(1 << 16);  // rows' and columns'

constexpr uint32_t kOneAnchor = 1;  // of a sub-block's notes
constexpr uint32_t kAllInverse = 2;

template <int KP>
struct ChannelPrepareMemory {
  static constexpr int kTileBytes = kChunk * KP * 2;
  // Tiles of q and k, which become the rows; of the write key, given or the key's, which become the columns.
  // At the end M lies over them.
  static constexpr int kQuery = 0;
  static constexpr int kKey = kTileBytes;
  static constexpr int kColumns = 2 * kTileBytes;
  static constexpr int kSystem = 0;
  static constexpr int kVectors = 3 * kTileBytes;                 // beta, norms, <q, w>, two bits a warp
  static constexpr int kTotals = kVectors + 4 * kVectorBytes;     // [4, KP] log-decays of 16 tokens
  static constexpr int kBetween = kTotals + kSubBlocks * KP * 4;  // [6, KP] decays of columns to later rows
  static_assert(System::kBytes <= 3 * kTileBytes);
  static constexpr int kBytes = kBetween + 6 * KP * 2;
};

/// One block of the kernel.
template <int KP>
struct ChannelPrepare {
  using Memory = ChannelPrepareMemory<KP>;
  static constexpr int kLanes = KP / 4;  // of a warp that have four channels each, for all of its tokens

  const DeltaRuleChannelPrepareArgs& args;
  const DeltaRuleShape& shape;
  const int64_t slot;  // of the chunk and value head
  const ChunkPlace place;
  const uint32_t base;
  const int warp;
  const int lane;
  const int first_row;
  const int channel;  // the lane's first of four
  const bool own_write_key;
  const uint32_t lane_address;  // of its first channel in the tile of q at the warp's first token

  __device__ ChannelPrepare(const DeltaRuleChannelPrepareArgs& given, uint32_t memory)
      : args(given),
        shape(given.in.shape),
        slot(slot_of_block<true>(shape, blockIdx.x)),
        place(place_of(shape, slot / shape.num_value_heads, static_cast<int>(slot % shape.num_value_heads))),
        base(memory),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        first_row(warp * kSubBlock),
        channel(lane * 4),
        own_write_key(given.in.write_key.data != nullptr),
        lane_address(q().piece(first_row, channel & ~7) + (channel & 7) * 2) {}

  __device__ RowTile<KP> q() const { return {base + Memory::kQuery}; }
  __device__ RowTile<KP> k() const { return {base + Memory::kKey}; }
  __device__ RowTile<KP> columns() const { return {base + Memory::kColumns}; }
  __device__ RowTile<KP> w() const { return own_write_key ? columns() : k(); }
  __device__ System system() const { return {base + Memory::kSystem}; }
  __device__ uint32_t beta() const { return base + Memory::kVectors; }
  __device__ uint32_t k_rstd() const { return beta() + kVectorBytes; }
  __device__ uint32_t self() const { return beta() + 2 * kVectorBytes; }  // <q, w> of every token, as given
  __device__ uint32_t by_warp() const { return beta() + 3 * kVectorBytes; }
  __device__ uint32_t total(int block, int of_channel) const {
    return base + Memory::kTotals + (block * KP + of_channel) * 4;
  }
  /// The decays of two channels from the columns of sub-block `block` to the rows of a later one.
  __device__ uint32_t between(int row_block, int block, int of_channel) const {
    return base + Memory::kBetween + ((row_block * (row_block - 1) / 2 + block) * KP + of_channel) * 2;
  }
  /// The lane's channels in the tile of q at the warp's token r; those of other tiles lie a constant beyond.
  __device__ uint32_t address(int r) const { return (lane_address ^ ((r & 7) << 4)) + r * 128; }

  // Fragments of 16 channels of a tile: `ldmatrix` addresses for the tile's first 16 tokens at `base`; a step
  // of 16 channels is an exclusive or, 16 tokens and 64 channels are added.
  static constexpr int kPanelBytes = RowTile<KP>::kPanelBytes;
  __device__ uint32_t a_address() const {
    return q().piece(((lane >> 3) & 1) * 8 + (lane & 7), (lane >> 4) * 8);
  }
  __device__ uint32_t b_address() const {
    return q().piece((lane >> 4) * 8 + (lane & 7), ((lane >> 3) & 1) * 8);
  }
  __device__ static uint32_t step_of(uint32_t address, int step) { return address ^ (step << 5); }

  __device__ void queue_copies() const {
    copy_rows_async<kPrepareThreads>(q(), rows_at(args.in.q, place.token, place.key_head),
                                     args.in.q.token_stride, place.rows, shape.key_size);
    copy_rows_async<kPrepareThreads>(k(), rows_at(args.in.k, place.token, place.key_head),
                                     args.in.k.token_stride, place.rows, shape.key_size);
    if (own_write_key)
      copy_rows_async<kPrepareThreads>(w(), rows_at(args.in.write_key, place.token, place.head),
                                       args.in.write_key.token_stride, place.rows, shape.key_size);
    copy_vector_async(beta(), args.in.beta + place.token * shape.num_value_heads + place.head,
                      shape.num_value_heads, place.rows, 0);
    copy_async_commit();
  }

  /// Between rows of [N, HV, K].
  __device__ uint32_t row_stride() const {
    return static_cast<uint32_t>(shape.num_value_heads) * static_cast<uint32_t>(shape.key_size);
  }

  /// Log-decays to base 2 of the lane's channels, summed from the sub-block's start to each of its tokens.
  __device__ void sum_logs(float (&out)[kSubBlock][4]) const {
    const float* source = args.log_decay + log_decay_at(shape, place, first_row, channel);
    const bool valid = lane < kLanes && channel < shape.key_size;
    const auto load = [&](const auto& given) {
#pragma unroll
      for (int r = 0; r < kSubBlock; ++r) {
        const auto* from = reinterpret_cast<const float4*>(source + r * row_stride());
        const float4 x = given(r) ? __ldg(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        out[r][0] = x.x;
        out[r][1] = x.y;
        out[r][2] = x.z;
        out[r][3] = x.w;
      }
    };
    if (KP == shape.key_size && first_row + kSubBlock <= place.rows && kLanes == 32)
      load([](int) { return true; });
    else
      load([&](int r) { return valid && first_row + r < place.rows; });
#pragma unroll
    for (int r = 0; r < kSubBlock; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out[r][i] = fmaf(fmaxf(out[r][i], kSmallestChannelDecay), kLog2E, r > 0 ? out[r - 1][i] : 0.0f);
  }

  /// Squares of q and k and <q, w> of the warp's tokens: the diagonals of products of the rows as given.
  __device__ void find_norms() const {
    float squares_q[2][4] = {};
    float squares_k[2][4] = {};
    float of_self[2][4] = {};
    const uint32_t at = a_address() + first_row * 128;
#pragma unroll
    for (int panel = 0; panel < KP / 64; ++panel)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t here = step_of(at, i) + panel * kPanelBytes;
        uint32_t a[4];
        uint32_t b[4];
        load_blocks(a, here + Memory::kQuery);
        load_blocks(b, here + Memory::kKey);
        // Rows g and g + 8 of an A fragment are columns of two B fragments.
        mma_bf16(squares_q[0], a, a[0], a[2]);
        mma_bf16(squares_q[1], a, a[1], a[3]);
        mma_bf16(squares_k[0], b, b[0], b[2]);
        mma_bf16(squares_k[1], b, b[1], b[3]);
        if (own_write_key) load_blocks(b, here + Memory::kColumns);
        mma_bf16(of_self[0], a, b[0], b[2]);
        mma_bf16(of_self[1], a, b[1], b[3]);
      }
    const int g = lane >> 2;
    if ((g >> 1) == (lane & 3)) {  // the pair of columns has the row's own
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto diagonal = [&](const float(&x)[4]) { return g & 1 ? x[2 * half + 1] : x[2 * half]; };
        const int row = first_row + half * 8 + g;
        const float norm_q = args.normalize ? rsqrtf(diagonal(squares_q[half]) + kChannelNormEpsilon) : 1.0f;
        const float norm_k = args.normalize ? rsqrtf(diagonal(squares_k[half]) + kChannelNormEpsilon) : 1.0f;
        write_shared(k_rstd() + row * 4, norm_k);
        write_shared(self() + row * 4, diagonal(of_self[half]));
        if (row < place.rows) {
          const int64_t at = (place.token + row) * shape.num_value_heads + place.head;
          args.out.q_rstd[at] = norm_q;
          args.out.k_rstd[at] = norm_k;
        }
      }
    }
    __syncwarp();
  }

  /// How many of the warp's tokens, from the first, have columns that carry the inverse of their decays;
  /// notes whether all have, and whether one anchor will serve the sub-block in the backward.
  __device__ int count_columns(const float (&logs)[kSubBlock][4]) const {
    bool mild = true;
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      constexpr float kLimit = -kLargestAnchoredExponent * kLog2E;
      const float middle = logs[kSubBlock / 2 - 1][i];
      const float last = logs[kSubBlock - 1][i];
      mild = mild && middle >= kLimit && last - middle >= kLimit;
      all = all && last >= -kLargestColumn;
    }
    mild = __all_sync(0xffffffffu, mild ? 1 : 0) != 0;
    all = __all_sync(0xffffffffu, all ? 1 : 0) != 0;
    if (lane == 0) write_shared_bits(by_warp() + warp * 4, (mild ? kOneAnchor : 0) | (all ? kAllInverse : 0));
    if (all) return kSubBlock;
    unsigned beyond = 0;
#pragma unroll
    for (int r = 0; r < kSubBlock; ++r) {
      const float least = fminf(fminf(logs[r][0], logs[r][1]), fminf(logs[r][2], logs[r][3]));
      beyond += least < -kLargestColumn ? 1 : 0;
    }
    return kSubBlock - static_cast<int>(__reduce_max_sync(0xffffffffu, beyond));
  }

  /// The lane's four channels of a token in a tile, as pairs.
  __device__ static uint2 read_tile(uint32_t address) {
    const float2 bits = read_shared_2(address);
    return make_uint2(__float_as_uint(bits.x), __float_as_uint(bits.y));
  }
  __device__ static void write_tile(uint32_t address, uint2 words) {
    write_shared_2(address, __uint_as_float(words.x), __uint_as_float(words.y));
  }
  __device__ static uint2 rounded(const float (&x)[4]) {
    return make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
  }
  __device__ static uint2 multiply(uint2 x, uint2 y) {
    return make_uint2(multiply_pairs(x.x, y.x), multiply_pairs(x.y, y.y));
  }

  /// Tiles with the decays within 16 tokens, columns from `inverse_columns` on with those until their end;
  /// and, to global memory, rows with those of the chunk.
  template <bool kOwnWriteKey>
  __device__ void decay_rows(const float (&logs)[kSubBlock][4], int inverse_columns) const {
    if (lane < kLanes) {
      float before[4] = {};     // decays of all sub-blocks before the warp's, less the power of the rows
      float until_end[4] = {};  // log-decays from the start of the warp's to the end of the chunk
      float all[4] = {};
#pragma unroll
      for (int block = 0; block < kSubBlocks; ++block) {
        const float4 read = read_shared_4(total(block, channel));
        const float logs_of[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          all[i] += logs_of[i];
          if (block < warp) before[i] += logs_of[i];
          if (block >= warp) until_end[i] += logs_of[i];
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        before[i] = exp2_approx(before[i]) * kRowScale;
        if (warp == 0) args.chunk_decay[slot * KP + channel + i] = exp2_approx(all[i]);
      }
      const int64_t at = log_decay_at(shape, place, first_row, channel);
      char* const to_q = reinterpret_cast<char*>(args.q + at);
      char* const to_k = reinterpret_cast<char*>(args.k + at);
      char* const to_write_key = reinterpret_cast<char*>(args.write_key + at);
      uint32_t offset = 0;
      const int rows = channel < shape.key_size ? place.rows - first_row : 0;
#pragma unroll
      for (int r = 0; r < kSubBlock; ++r) {
        const auto store = [&](char* target, uint2 words) {
          if (r < rows) *reinterpret_cast<uint2*>(target + offset) = words;
        };
        const uint2 query = read_tile(address(r) + Memory::kQuery);
        const uint2 key = read_tile(address(r) + Memory::kKey);
        float factors[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) factors[i] = exp2_approx(logs[r][i] + kRowExponent);
        const uint2 from_block = rounded(factors);
        write_tile(address(r) + Memory::kQuery, multiply(query, from_block));
        write_tile(address(r) + Memory::kKey, multiply(key, from_block));
#pragma unroll
        for (int i = 0; i < 4; ++i) factors[i] *= before[i];
        const uint2 from_start = rounded(factors);
        store(to_q, multiply(query, from_start));
        store(to_k, multiply(key, from_start));
        const uint2 write = kOwnWriteKey ? read_tile(address(r) + Memory::kColumns) : key;
        const bool inverse = r < inverse_columns;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          factors[i] = exp2_approx((inverse ? kColumnExponent : logs[kSubBlock - 1][i]) - logs[r][i]);
        write_tile(address(r) + Memory::kColumns, multiply(write, rounded(factors)));
        const float written = kOwnWriteKey ? 1.0f : read_shared(k_rstd() + (first_row + r) * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          factors[i] = exp2_approx(until_end[i] - logs[r][i]);
          if (!kOwnWriteKey) factors[i] *= written;
        }
        store(to_write_key, multiply(write, rounded(factors)));
        offset += 2 * row_stride();
      }
    }
    if (threadIdx.x < KP / 2) {
      const int pair = static_cast<int>(threadIdx.x) * 2;
#pragma unroll
      for (int block = 0; block < kSubBlocks - 1; ++block) {
        // Inverse decays become those until the end of the sub-block.
        float2 logs_between = make_float2(0.0f, 0.0f);
        if ((notes(block) & kAllInverse) != 0) {
          const float2 read = read_shared_2(total(block, pair));
          logs_between = make_float2(read.x - kColumnExponent, read.y - kColumnExponent);
        }
#pragma unroll
        for (int row_block = block + 1; row_block < kSubBlocks; ++row_block) {
          write_shared_bits(between(row_block, block, pair),
                            pack_bf16(exp2_approx(logs_between.x), exp2_approx(logs_between.y)));
          const float2 read = read_shared_2(total(row_block, pair));
          logs_between.x += read.x;
          logs_between.y += read.y;
        }
      }
    }
  }

  /// What count_columns has noted of a sub-block.
  __device__ uint32_t notes(int block) const { return read_shared_bits(by_warp() + block * 4); }

  /// Columns before `inverse_columns` with their decays until the end of the sub-block. The factor in two
  /// parts: together they may be smaller than fp32 has where what they give is not.
  __device__ void turn_columns(int inverse_columns) const {
    if (lane >= kLanes) return;
    const float4 all = read_shared_4(total(warp, channel));
    float factors[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) factors[i] = exp2_approx((factors[i] - kColumnExponent) * 0.5f);
#pragma unroll 1
    for (int r = 0; r < inverse_columns; ++r) {
      const uint32_t at = address(r) + Memory::kColumns;
      const uint2 x = read_tile(at);
      const float2 low = unpack_bf16(x.x);
      const float2 high = unpack_bf16(x.y);
      const float turned[4] = {low.x * factors[0] * factors[0], low.y * factors[1] * factors[1],
                               high.x * factors[2] * factors[2], high.y * factors[3] * factors[3]};
      write_tile(at, rounded(turned));
    }
  }

  /// Products of the warp's tokens with themselves, rows of q and of k, in accumulators of columns 0 .. 7 and
  /// 8 .. 15, divided by kDiagonalScale.
  __device__ void multiply_within(float (&of_query)[2][4], float (&of_key)[2][4]) const {
    const uint32_t a = a_address() + first_row * 128;
    const uint32_t b = b_address() + first_row * 128 + Memory::kColumns;
#pragma unroll
    for (int panel = 0; panel < KP / 64; ++panel)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t rows_q[4];
        uint32_t rows_k[4];
        uint32_t column[4];
        load_blocks(rows_q, step_of(a, i) + panel * kPanelBytes + Memory::kQuery);
        load_blocks(rows_k, step_of(a, i) + panel * kPanelBytes + Memory::kKey);
        load_blocks(column, step_of(b, i) + panel * kPanelBytes);
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          mma_bf16(of_query[eight], rows_q, column[2 * eight], column[2 * eight + 1]);
          mma_bf16(of_key[eight], rows_k, column[2 * eight], column[2 * eight + 1]);
        }
      }
  }

  /// The pairs with columns from `first_column` on of the warp's tokens, one by one, from global memory.
  __device__ void add_strong_pairs(float (&of_query)[2][4], float (&of_key)[2][4], int first_column) const {
    const auto pair = [&](const DeltaRuleRows& rows, int head, int row, int of_channel) {
      if (row >= place.rows || of_channel >= shape.key_size) return make_float2(0.0f, 0.0f);
      return unpack_bf16(
          __ldg(reinterpret_cast<const uint32_t*>(rows_at(rows, place.token + row, head) + of_channel)));
    };
#pragma unroll 1
    for (int s = first_column; s < kSubBlock - 1; ++s) {
      float2 decayed[2];  // the write key of token s, as row r finds it
#pragma unroll
      for (int i = 0; i < 2; ++i)
        decayed[i] = own_write_key ? pair(args.in.write_key, place.head, first_row + s, channel + 2 * i)
                                   : pair(args.in.k, place.key_head, first_row + s, channel + 2 * i);
#pragma unroll 1
      for (int r = s + 1; r < kSubBlock; ++r) {
        float with_query = 0.0f;
        float with_key = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 log = log_decay_pair(args.log_decay, shape, place, first_row + r, channel + 2 * i);
          const float2 x = pair(args.in.q, place.key_head, first_row + r, channel + 2 * i);
          const float2 y = pair(args.in.k, place.key_head, first_row + r, channel + 2 * i);
          decayed[i].x *= exp2_approx(log.x * kLog2E);
          decayed[i].y *= exp2_approx(log.y * kLog2E);
          with_query += x.x * decayed[i].x + x.y * decayed[i].y;
          with_key += y.x * decayed[i].x + y.y * decayed[i].y;
        }
        with_query = warp_sum(with_query);
        with_key = warp_sum(with_key);
        if (lane != (r & 7) * 4 + ((s & 7) >> 1)) continue;
#pragma unroll
        for (int eight = 0; eight < 2; ++eight)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            // Selected, not indexed: so the sums stay in registers.
            const bool here = eight == (s >> 3) && i == (r >> 3) * 2 + (s & 1);
            of_query[eight][i] = here ? with_query / kDiagonalScale : of_query[eight][i];
            of_key[eight][i] = here ? with_key / kDiagonalScale : of_key[eight][i];
          }
      }
    }
  }

  /// Products of rows 8 half + g of sub-block `row_block` with columns 8 eight + 2t, + 1 of sub-block
  /// `block`: of q to global memory, of k to the system.
  __device__ float2 writing(int block, int eight) const {
    return own_write_key ? make_float2(1.0f, 1.0f) : column_pair(k_rstd(), block * 2 + eight, lane);
  }
  __device__ void store_query(int row_block, int block, int eight, int half, float2 product) const {
    const float2 factor = writing(block, eight);
    auto* pairs = reinterpret_cast<uint32_t*>(args.out.pairs + slot * kDeltaRuleTriangle);
    pairs[TriangleTile::block(row_block, block) * 128 + half * 64 + eight * 32 + lane] =
        pack_bf16(product.x * factor.x, product.y * factor.y);
  }
  __device__ void store_key(int row_block, int block, int eight, int half, float2 product) const {
    const float2 factor = writing(block, eight);
    const int row = row_block * kSubBlock + half * 8 + (lane >> 2);
    const float norm = read_shared(k_rstd() + row * 4);
    write_shared_2(system().address(row, block * kSubBlock + eight * 8 + (lane & 3) * 2),
                   product.x * (norm * factor.x), product.y * (norm * factor.y));
  }

  __device__ void store_within(const float (&of_query)[2][4], const float (&of_key)[2][4]) const {
    const int g = lane >> 2;
#pragma unroll
    for (int eight = 0; eight < 2; ++eight)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float of_self = read_shared(self() + (first_row + half * 8 + g) * 4);
        float query[2];
        float key[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = eight * 8 + (lane & 3) * 2 + i;
          const int row = half * 8 + g;
          query[i] = column < row    ? of_query[eight][2 * half + i] * kDiagonalScale
                     : column == row ? of_self
                                     : 0.0f;
          key[i] = column < row ? of_key[eight][2 * half + i] * kDiagonalScale : 0.0f;
        }
        store_query(warp, warp, eight, half, make_float2(query[0], query[1]));
        store_key(warp, warp, eight, half, make_float2(key[0], key[1]));
      }
    for (int eight = 2 * (warp + 1); eight < kChunk / 8; ++eight)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        write_shared_2(system().address(first_row + half * 8 + g, eight * 8 + (lane & 3) * 2), 0.0f, 0.0f);
  }

  /// Products with a sub-block's columns, a B fragment, decayed on the way to the rows; two channels' decays
  /// at `decays`.
  __device__ static void multiply_decayed(float (&out)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                                          uint32_t decays) {
    const uint32_t low = read_shared_bits(decays);
    const uint32_t high = read_shared_bits(decays + 16);
    mma_bf16(out[0], a, multiply_pairs(b[0], low), multiply_pairs(b[1], high));
    mma_bf16(out[1], a, multiply_pairs(b[2], low), multiply_pairs(b[3], high));
  }

  /// The blocks below the diagonal, three a warp: even warps have rows of q, odd ones of k; the first two
  /// have columns of the first sub-block, the others those of the second and third.
  __device__ void multiply_below(float (&products)[3][2][4]) const {
    constexpr int kBlockBytes = kSubBlock * 128;
    const bool first_columns = warp < 2;
    const uint32_t a = a_address() + ((warp & 1) == 0 ? Memory::kQuery : Memory::kKey);
    const uint32_t b = b_address() + Memory::kColumns;
    const uint32_t decays = between(1, 0, (lane & 3) * 2);
    const auto table = [](int row_block, int block) {
      return (row_block * (row_block - 1) / 2 + block) * KP * 2;
    };
#pragma unroll 1
    for (int panel = 0; panel < KP / 64; ++panel)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t rows = step_of(a, i) + panel * kPanelBytes;
        const uint32_t of_columns = step_of(b, i) + panel * kPanelBytes;
        const uint32_t at = decays + panel * 128 + i * 32;
        uint32_t third[4];
        uint32_t fourth[4];
        uint32_t column[4];
        load_blocks(third, rows + 2 * kBlockBytes);
        load_blocks(fourth, rows + 3 * kBlockBytes);
        if (first_columns) {
          uint32_t second[4];
          load_blocks(second, rows + kBlockBytes);
          load_blocks(column, of_columns);
          multiply_decayed(products[0], second, column, at + table(1, 0));
          multiply_decayed(products[1], third, column, at + table(2, 0));
          multiply_decayed(products[2], fourth, column, at + table(3, 0));
        } else {
          load_blocks(column, of_columns + kBlockBytes);
          multiply_decayed(products[0], third, column, at + table(2, 1));
          multiply_decayed(products[1], fourth, column, at + table(3, 1));
          load_blocks(column, of_columns + 2 * kBlockBytes);
          multiply_decayed(products[2], fourth, column, at + table(3, 2));
        }
      }
  }

  __device__ void store_below(const float (&products)[3][2][4]) const {
    const bool of_query = (warp & 1) == 0;
    const bool first_columns = warp < 2;
#pragma unroll
    for (int which = 0; which < 3; ++which) {
      const int row_block = first_columns ? which + 1 : which == 0 ? 2 : 3;
      const int block = first_columns ? 0 : which == 2 ? 2 : 1;
#pragma unroll
      for (int eight = 0; eight < 2; ++eight)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 product = make_float2(products[which][eight][2 * half] * kRowScale,
                                             products[which][eight][2 * half + 1] * kRowScale);
          if (of_query)
            store_query(row_block, block, eight, half, product);
          else
            store_key(row_block, block, eight, half, product);
        }
    }
  }
};

/// Places of 16 bytes of a triangle's rows in a system.
struct SystemRows {
  System system;
  __device__ uint32_t piece(int row, int column) const { return system.address(row, column); }
};

/// Y to the chunk's place as bf16, rounded and what rounding took: numbers of a chunk may be e^-80 of others
/// and count beside gradients as small.
__device__ void store_inverse_in_two(const System& system, const DeltaRulePrepared& prepared, int64_t slot) {
  constexpr int kPieces = TriangleTile::kBytes / 16;
  auto* target = reinterpret_cast<uint4*>(prepared.inverse + slot * (2 * kDeltaRuleTriangle));
#pragma unroll
  for (int first = 0; first < kPieces; first += kPrepareThreads) {
    const int piece = first + static_cast<int>(threadIdx.x);
    if (piece >= kPieces) break;
    const uint32_t at = triangle_piece_in(SystemRows{system}, piece);
    const float4 left = read_shared_4(at);
    const float4 right = read_shared_4(at + 16);
    const float x[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
    uint32_t rounded[4];
    uint32_t rest[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rounded[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
      const float2 stored = unpack_bf16(rounded[i]);
      rest[i] = pack_bf16(x[2 * i] - stored.x, x[2 * i + 1] - stored.y);
    }
    target[piece] = make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
    target[kPieces + piece] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  }
}

// On a multiprocessor, by its shared memory: 228 KB at compute capability 9.0, 164 KB or less elsewhere.
constexpr int kBlocksAtOnce = OSDN_WGMMA ? 4 : 3;

template <int KP>
__global__ void __launch_bounds__(kPrepareThreads, kBlocksAtOnce)
    delta_rule_channel_prepare_kernel(const __grid_constant__ DeltaRuleChannelPrepareArgs args) {
  const ChannelPrepare<KP> part(args, dynamic_shared());
  if (!part.place.exists) {
    if (threadIdx.x == 0) args.anchored[part.slot] = (1 << kSubBlocks) - 1;  // nothing for the strong kernel
    return;
  }
  part.queue_copies();
  float of_query[2][4] = {};
  float of_key[2][4] = {};
  {
    float logs[kSubBlock][4];
    part.sum_logs(logs);
    if (part.lane < part.kLanes) {
      const float(&last)[4] = logs[kSubBlock - 1];
      const uint32_t target = part.total(part.warp, part.channel);
      write_shared_2(target, last[0], last[1]);
      write_shared_2(target + 8, last[2], last[3]);
    }
    const int inverse_columns = part.count_columns(logs);
    copy_async_wait<0>();
    __syncthreads();
    part.find_norms();
    if (part.own_write_key)
      part.template decay_rows<true>(logs, inverse_columns);
    else
      part.template decay_rows<false>(logs, inverse_columns);
    __syncwarp();
    part.multiply_within(of_query, of_key);
    if (inverse_columns < kSubBlock) {
      part.add_strong_pairs(of_query, of_key, inverse_columns);
      __syncwarp();
      part.turn_columns(inverse_columns);
    }
  }
  __syncthreads();  // all tiles are there
  if (threadIdx.x == 0) {
    int bits = 0;
#pragma unroll
    for (int i = 0; i < kSubBlocks; ++i) bits |= (part.notes(i) & kOneAnchor) != 0 ? 1 << i : 0;
    args.anchored[part.slot] = bits;
  }
  float below[3][2][4] = {};
  part.multiply_below(below);
  __syncthreads();  // and done with
  part.store_within(of_query, of_key);
  part.store_below(below);
  __syncthreads();
  solve(part.system(), part.beta(), part.warp, part.lane);
  store_inverse_in_two(part.system(), args.out, part.slot);
}

}  // namespace

void launch(const DeltaRuleChannelPrepareArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  const auto blocks = static_cast<unsigned>(shape.num_chunks * shape.num_value_heads);
  if (blocks == 0) return;
  by_key_size(shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    launch_kernel(delta_rule_channel_prepare_kernel<KP>, dim3(blocks), kPrepareThreads,
                  ChannelPrepareMemory<KP>::kBytes, args, stream);
  });
}

}  // namespace osdn::kernels
