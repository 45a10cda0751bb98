// First pass of the delta rule with a decay a key channel (docs/ops/delta_rule.md, "Decay by channel"): what
// of a chunk does not depend on the state, one block of four warps a (chunk, value head), 16 tokens a warp.
//
// Rows of q and k carry the decays since the start of their 16 tokens, columns of the write key those until
// the end of theirs: two blocks of 16 are a product of both with what decays between them. Within 16 tokens
// columns carry the inverse of the decays since the start. From the first token on that some channel of has
// decayed by more than the range of bf16 allows, pairs are added one by one. So no output depends on the
// decay of a later token, in bits.
#include "kernels/common/warp.cuh"
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

template <int KP>
struct ChannelPrepareMemory {
  static constexpr int kTileBytes = kChunk * KP * 2;
  static constexpr int kQuery = 0;
  static constexpr int kKey = kTileBytes;
  static constexpr int kColumns = 2 * kTileBytes;  // write keys, decayed to the end of their 16 tokens
  static constexpr int kSystem = 3 * kTileBytes;   // the write key as given, then as columns within, later M
  static constexpr int kVectors =
      kSystem + (kTileBytes > System::kBytes ? kTileBytes : System::kBytes);  // beta, norms, a float a warp
  static constexpr int kTotals = kVectors + 4 * kVectorBytes;     // [4, KP] log-decays of 16 tokens
  static constexpr int kBetween = kTotals + kSubBlocks * KP * 4;  // [3, KP] decays of inner ones
  static constexpr int kBytes = kBetween + 3 * KP * 2;
};

/// One block of the kernel.
template <int KP>
struct ChannelPrepare {
  using Memory = ChannelPrepareMemory<KP>;
  static constexpr int kSteps = KP / 16;
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
  __device__ RowTile<KP> within() const { return {base + Memory::kSystem}; }
  __device__ RowTile<KP> w() const { return own_write_key ? within() : k(); }
  __device__ System system() const { return {base + Memory::kSystem}; }
  __device__ uint32_t beta() const { return base + Memory::kVectors; }
  __device__ uint32_t k_rstd() const { return beta() + kVectorBytes; }
  __device__ uint32_t self() const { return beta() + 2 * kVectorBytes; }  // <q, w> of every token, as given
  __device__ uint32_t by_warp() const { return beta() + 3 * kVectorBytes; }
  __device__ uint32_t total(int block, int of_channel) const {
    return base + Memory::kTotals + (block * KP + of_channel) * 4;
  }
  /// Decays of a pair of channels between the first and the third sub-block (`which` 0), the second and the
  /// fourth (1), the first and the fourth (2).
  __device__ uint32_t between(int which, int of_channel) const {
    return base + Memory::kBetween + (which * KP + of_channel) * 2;
  }
  /// The lane's channels in the tile of q at the warp's token r; those of other tiles lie a constant beyond.
  __device__ uint32_t address(int r) const { return (lane_address ^ ((r & 7) << 4)) + r * 128; }

  /// To the L2 cache, what another block will begin with.
  __device__ void prefetch(int64_t other_slot) const {
    const ChunkPlace other = place_of(shape, other_slot / shape.num_value_heads,
                                      static_cast<int>(other_slot % shape.num_value_heads));
    const auto of = [&](const DeltaRuleRows& rows, int head) {
      prefetch_rows<kPrepareThreads, KP * 2>(rows_at(rows, other.token, head), rows.token_stride, other.rows,
                                             shape.key_size);
    };
    of(args.in.q, other.key_head);
    of(args.in.k, other.key_head);
    if (own_write_key) of(args.in.write_key, other.head);
    prefetch_rows<kPrepareThreads, KP * 4>(args.log_decay + log_decay_at(shape, other, 0, 0), row_stride(),
                                           other.rows, shape.key_size);
  }

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
        const auto* from = reinterpret_cast<const float2*>(source + r * row_stride());
        const float2 low = given(r) ? __ldg(from) : make_float2(0.0f, 0.0f);
        const float2 high = given(r) ? __ldg(from + 1) : make_float2(0.0f, 0.0f);
        out[r][0] = low.x;
        out[r][1] = low.y;
        out[r][2] = high.x;
        out[r][3] = high.y;
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
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t a[4];
      uint32_t b[4];
      load_a_of_rows(a, q(), first_row, i * 16, lane);
      load_a_of_rows(b, k(), first_row, i * 16, lane);
      // Rows g and g + 8 of an A fragment are columns of two B fragments.
      mma_bf16(squares_q[0], a, a[0], a[2]);
      mma_bf16(squares_q[1], a, a[1], a[3]);
      mma_bf16(squares_k[0], b, b[0], b[2]);
      mma_bf16(squares_k[1], b, b[1], b[3]);
      if (own_write_key) load_a_of_rows(b, w(), first_row, i * 16, lane);
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

  /// How many of the warp's tokens, from the first, serve as columns within the sub-block; and whether one
  /// anchor will serve it in the backward.
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
    if (lane == 0) write_shared(by_warp() + warp * 4, mild ? 1.0f : 0.0f);
    if (__all_sync(0xffffffffu, all ? 1 : 0) != 0) return kSubBlock;
    unsigned beyond = 0;
#pragma unroll
    for (int r = 0; r < kSubBlock; ++r) {
      const float least = fminf(fminf(logs[r][0], logs[r][1]), fminf(logs[r][2], logs[r][3]));
      beyond += least < -kLargestColumn ? 1 : 0;
    }
    return kSubBlock - static_cast<int>(__reduce_max_sync(0xffffffffu, beyond));
  }

  struct Four {
    float value[4];
    __device__ explicit Four(uint32_t address) {
      const float2 bits = read_shared_2(address);
      const float2 low = unpack_bf16(__float_as_uint(bits.x));
      const float2 high = unpack_bf16(__float_as_uint(bits.y));
      value[0] = low.x;
      value[1] = low.y;
      value[2] = high.x;
      value[3] = high.y;
    }
  };
  __device__ static uint2 scaled(const Four& x, const float (&factors)[4]) {
    return make_uint2(pack_bf16(x.value[0] * factors[0], x.value[1] * factors[1]),
                      pack_bf16(x.value[2] * factors[2], x.value[3] * factors[3]));
  }
  __device__ static void write_tile(uint32_t address, uint2 words) {
    write_shared_2(address, __uint_as_float(words.x), __uint_as_float(words.y));
  }

  /// Tiles with the decays within 16 tokens and, to global memory, rows with those of the chunk.
  template <bool kOwnWriteKey>
  __device__ void decay_rows(const float (&logs)[kSubBlock][4]) const {
    float before[4] = {};  // decays of all sub-blocks before the warp's, less the power of the rows
    float after[4] = {};
    float all[4] = {};
    if (lane < kLanes) {
#pragma unroll
      for (int block = 0; block < kSubBlocks; ++block) {
        const float4 read = read_shared_4(total(block, channel));
        const float logs_of[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          all[i] += logs_of[i];
          if (block < warp) before[i] += logs_of[i];
          if (block > warp) after[i] += logs_of[i];
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        before[i] = exp2_approx(before[i]) * kRowScale;
        after[i] = exp2_approx(after[i]);
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
        const Four query(address(r) + Memory::kQuery);
        const Four key(address(r) + Memory::kKey);
        float factors[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) factors[i] = exp2_approx(logs[r][i] + kRowExponent);
        write_tile(address(r) + Memory::kQuery, scaled(query, factors));
        write_tile(address(r) + Memory::kKey, scaled(key, factors));
#pragma unroll
        for (int i = 0; i < 4; ++i) factors[i] *= before[i];
        store(to_q, scaled(query, factors));
        store(to_k, scaled(key, factors));
        const Four write = kOwnWriteKey ? Four(address(r) + Memory::kSystem) : key;
#pragma unroll
        for (int i = 0; i < 4; ++i) factors[i] = exp2_approx(kColumnExponent - logs[r][i]);
        write_tile(address(r) + Memory::kSystem, scaled(write, factors));
#pragma unroll
        for (int i = 0; i < 4; ++i) factors[i] = exp2_approx(logs[kSubBlock - 1][i] - logs[r][i]);
        write_tile(address(r) + Memory::kColumns, scaled(write, factors));
        const float written = kOwnWriteKey ? 1.0f : read_shared(k_rstd() + (first_row + r) * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) factors[i] *= kOwnWriteKey ? after[i] : after[i] * written;
        store(to_write_key, scaled(write, factors));
        offset += 2 * row_stride();
      }
    }
    if (threadIdx.x < KP / 2) {
      const int pair = static_cast<int>(threadIdx.x) * 2;
      const float2 second = read_shared_2(total(1, pair));
      const float2 third = read_shared_2(total(2, pair));
      const auto keep = [&](int which, float low, float high) {
        write_shared_bits(between(which, pair), pack_bf16(exp2_approx(low), exp2_approx(high)));
      };
      keep(0, second.x, second.y);
      keep(1, third.x, third.y);
      keep(2, second.x + third.x, second.y + third.y);
    }
  }

  /// Zeros for the columns within the sub-block from `first_column` on.
  __device__ void drop_columns(int first_column) const {
    if (lane >= kLanes) return;
#pragma unroll
    for (int r = 0; r < kSubBlock; ++r)
      if (r >= first_column) write_tile(address(r) + Memory::kSystem, make_uint2(0, 0));
  }

  /// Products of the warp's tokens with themselves, rows of q and of k, in accumulators of columns 0 .. 7 and
  /// 8 .. 15, divided by kDiagonalScale.
  __device__ void multiply_within(float (&of_query)[2][4], float (&of_key)[2][4]) const {
#pragma unroll 2
    for (int i = 0; i < kSteps; ++i) {
      uint32_t rows_q[4];
      uint32_t rows_k[4];
      uint32_t b[4];
      load_a_of_rows(rows_q, q(), first_row, i * 16, lane);
      load_a_of_rows(rows_k, k(), first_row, i * 16, lane);
      load_b_of_rows(b, within(), first_row, i * 16, lane);
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        mma_bf16(of_query[eight], rows_q, b[2 * eight], b[2 * eight + 1]);
        mma_bf16(of_key[eight], rows_k, b[2 * eight], b[2 * eight + 1]);
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
          for (int i = 0; i < 4; ++i)
            if (eight == (s >> 3) && i == (r >> 3) * 2 + (s & 1)) {
              of_query[eight][i] = with_query / kDiagonalScale;
              of_key[eight][i] = with_key / kDiagonalScale;
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

  /// B fragments of a sub-block's columns, further decayed.
  __device__ void decay_columns(uint32_t (&out)[4], const uint32_t (&b)[4], int which, int step) const {
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      const uint32_t factor = read_shared_bits(between(which, step * 16 + piece * 8 + (lane & 3) * 2));
      out[piece] = multiply_pairs(b[piece], factor);
      out[2 + piece] = multiply_pairs(b[2 + piece], factor);
    }
  }

  /// The blocks below the diagonal, three a warp: even warps have rows of q, odd ones of k; the first two
  /// have columns of the first sub-block, the others those of the second and third.
  __device__ void multiply_below() const {
    const bool of_query = (warp & 1) == 0;
    const bool first_columns = warp < 2;
    const RowTile<KP> rows = of_query ? q() : k();
    float products[3][2][4] = {};
    const auto multiply = [](float(&out)[2][4], const uint32_t(&a)[4], const uint32_t(&b)[4]) {
      mma_bf16(out[0], a, b[0], b[1]);
      mma_bf16(out[1], a, b[2], b[3]);
    };
#pragma unroll 2
    for (int i = 0; i < kSteps; ++i) {
      uint32_t third[4];
      uint32_t fourth[4];
      uint32_t b[4];
      uint32_t decayed[4];
      load_a_of_rows(third, rows, 2 * kSubBlock, i * 16, lane);
      load_a_of_rows(fourth, rows, 3 * kSubBlock, i * 16, lane);
      if (first_columns) {
        uint32_t second[4];
        load_a_of_rows(second, rows, kSubBlock, i * 16, lane);
        load_b_of_rows(b, columns(), 0, i * 16, lane);
        multiply(products[0], second, b);
        decay_columns(decayed, b, 0, i);
        multiply(products[1], third, decayed);
        decay_columns(decayed, b, 2, i);
        multiply(products[2], fourth, decayed);
      } else {
        load_b_of_rows(b, columns(), kSubBlock, i * 16, lane);
        multiply(products[0], third, b);
        decay_columns(decayed, b, 1, i);
        multiply(products[1], fourth, decayed);
        load_b_of_rows(b, columns(), 2 * kSubBlock, i * 16, lane);
        multiply(products[2], fourth, b);
      }
    }
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

struct PrepareArgs {
  DeltaRuleChannelPrepareArgs args;
  unsigned blocks;
  unsigned at_once;  // blocks on the device
};

constexpr int kBlocksAtOnce = 3;  // on a multiprocessor

template <int KP>
__global__ void __launch_bounds__(kPrepareThreads, kBlocksAtOnce)
    delta_rule_channel_prepare_kernel(const __grid_constant__ PrepareArgs all) {
  const DeltaRuleChannelPrepareArgs& args = all.args;
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
    const int anchored_columns = part.count_columns(logs);
    copy_async_wait<0>();
    __syncthreads();
    part.find_norms();
    if (part.own_write_key)
      part.template decay_rows<true>(logs);
    else
      part.template decay_rows<false>(logs);
    if (anchored_columns < kSubBlock) part.drop_columns(anchored_columns);
    __syncwarp();
    part.multiply_within(of_query, of_key);
    if (anchored_columns < kSubBlock) part.add_strong_pairs(of_query, of_key, anchored_columns);
  }
  if (blockIdx.x + all.at_once < all.blocks)
    part.prefetch(slot_of_block<true>(args.in.shape, blockIdx.x + all.at_once));
  __syncthreads();  // all tiles are there, and the columns within sub-blocks done with
  if (threadIdx.x == 0) {
    int bits = 0;
#pragma unroll
    for (int i = 0; i < kSubBlocks; ++i) bits |= read_shared(part.by_warp() + i * 4) != 0.0f ? 1 << i : 0;
    args.anchored[part.slot] = bits;
  }
  part.store_within(of_query, of_key);
  part.multiply_below();
  __syncthreads();
  solve(part.system(), part.beta(), part.warp, part.lane);
  store_inverse(part.system(), args.out, part.slot, part.by_warp());
}

}  // namespace

void launch(const DeltaRuleChannelPrepareArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  const auto blocks = static_cast<unsigned>(shape.num_chunks * shape.num_value_heads);
  if (blocks == 0) return;
  by_key_size(shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    launch_kernel(delta_rule_channel_prepare_kernel<KP>, dim3(blocks), kPrepareThreads,
                  ChannelPrepareMemory<KP>::kBytes,
                  PrepareArgs{args, blocks, static_cast<unsigned>(kBlocksAtOnce * multiprocessors())},
                  stream);
  });
}

}  // namespace osdn::kernels
