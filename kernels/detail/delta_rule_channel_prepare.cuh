// What the first pass of the delta rule with a decay a key channel (delta_rule_channel_prep.cu) makes of a
// chunk's rows: norms, sums of log-decays, and rows and columns that carry decays, in shared memory for the
// pairs' products and in global memory for the scans. A block of eight warps a chunk; a warp has 16 tokens
// and 64 channels, a lane eight and four of them.
#pragma once

#include "kernels/common/warp.cuh"
#include "kernels/delta_rule_channel.h"
#include "kernels/detail/delta_rule_channel.cuh"
#include "kernels/detail/delta_rule_inverse.cuh"

namespace osdn::kernels {

constexpr float kChannelNormEpsilon = 1e-6f;  // inside the root

// Logarithms to base 2. Columns within 16 tokens may have decayed by 16 times the usual floor of e^-5; they
// are made smaller and rows larger by a power of two, so that keys up to 2^35 stay in range and rows keep
// their digits where a column is still among them.
constexpr float kLargestColumn = 80.5f * kLog2E;
constexpr float kChannelExponent = 24.0f;
constexpr float kChannelRowScale = 1.0f / (1 << 24);  // takes the rows' power back
// A decay from the start of a sub-block to the chunk's end up to which it is, times the power, a number that
// fp32 has all digits of.
constexpr float kLargestEnd = 148.0f;

constexpr int kChannelThreads = 256;

// What a warp notes of its tokens and channels: bits, and how many columns carry the inverse.
constexpr uint32_t kOneAnchor = 1;
constexpr uint32_t kAllInverse = 2;
constexpr uint32_t kColumnsNote = 4;

template <int KP>
struct ChannelPrepareMemory {
  static constexpr int kTileBytes = kChunk * KP * 2;
  // Tiles of q and k, which become the rows; of the write key, given or the key's, which become the columns.
  // At the end M lies over them.
  static constexpr int kQuery = 0;
  static constexpr int kKey = kTileBytes;
  static constexpr int kColumns = 2 * kTileBytes;
  static constexpr int kSystem = 0;
  static constexpr int kVectors = 3 * kTileBytes;                      // beta, norms, <q, w>, a note a warp
  static constexpr int kTotals = kVectors + 4 * kVectorBytes;          // [4, KP] log-decays of 16 tokens
  static constexpr int kFirstHalves = kTotals + kSubBlocks * KP * 4;   // [4, KP] of their first eight
  static constexpr int kBetween = kFirstHalves + kSubBlocks * KP * 4;  // [6, KP] decays between blocks
  static_assert(System::kBytes <= 3 * kTileBytes);
  // Log-decays of type G: bf16 in the place of the columns, while no write key is; else behind everything.
  static constexpr int kEnd = kBetween + 6 * KP * 2;
  template <typename G>
  __host__ __device__ static constexpr int logs(bool own_write_key) {
    return sizeof(G) == 2 && !own_write_key ? kColumns : (kEnd + 1023) / 1024 * 1024;
  }
  template <typename G>
  static constexpr int bytes(bool own_write_key) {
    return max(kEnd, logs<G>(own_write_key) + kChunk * KP * static_cast<int>(sizeof(G)));
  }
};

/// A chunk as a block of the first pass has it: its tiles, which first hold rows as given and then carry the
/// decays within 16 tokens, and what is known of its tokens.
template <int KP>
struct ChannelChunk {
  using Memory = ChannelPrepareMemory<KP>;
  static constexpr int kRows = 8;  // of a lane: the first or the second eight tokens of the warp's

  const ChannelPart<DeltaRuleChannelPrepareArgs>& args;
  const DeltaRuleShape& shape;
  const uint32_t base;
  const bool own_write_key;

  __device__ ChannelChunk(const ChannelPart<DeltaRuleChannelPrepareArgs>& given, uint32_t memory)
      : args(given), shape(given.in.shape), base(memory), own_write_key(given.in.write_key.data != nullptr) {}

  // Unsigned, so that no sign is divided.
  __device__ static unsigned thread() { return threadIdx.x; }
  __device__ static int own_warp() { return static_cast<int>(thread() / 32); }
  __device__ static int own_lane() { return static_cast<int>(thread() % 32); }
  __device__ static int own_block() { return static_cast<int>(thread() / 32 % kSubBlocks); }  // of tokens
  /// Of the channels; of products within a sub-block those with rows of q or of k.
  __device__ static int own_half() { return static_cast<int>(thread() / 128); }
  /// The lane's first token of eight.
  __device__ static int own_row() {
    return static_cast<int>(thread() / 32 % kSubBlocks * kSubBlock + (thread() & 16) / 2);
  }
  /// Its first channel of four.
  __device__ static int own_channel() { return static_cast<int>(thread() / 128 * 64 + thread() % 16 * 4); }

  __device__ RowTile<KP> q() const { return {base + Memory::kQuery}; }
  __device__ RowTile<KP> k() const { return {base + Memory::kKey}; }
  __device__ RowTile<KP> columns() const { return {base + Memory::kColumns}; }
  __device__ RowTile<KP> w() const { return own_write_key ? columns() : k(); }
  __device__ System system() const { return {base + Memory::kSystem}; }
  __device__ uint32_t beta() const { return base + Memory::kVectors; }
  __device__ uint32_t k_rstd() const { return beta() + kVectorBytes; }
  __device__ uint32_t self() const { return beta() + 2 * kVectorBytes; }  // <q, w> of every token, as given
  __device__ uint32_t by_warp() const { return beta() + 3 * kVectorBytes; }
  __device__ uint32_t total(int of_block, int of_channel) const {
    return base + Memory::kTotals + (of_block * KP + of_channel) * 4;
  }
  __device__ uint32_t first_half(int of_block, int of_channel) const {
    return total(of_block, of_channel) + (Memory::kFirstHalves - Memory::kTotals);
  }
  /// The decays of two channels from the columns of sub-block `block` to the rows of a later one.
  __device__ uint32_t between(int row_block, int of_block, int of_channel) const {
    return base + Memory::kBetween + ((row_block * (row_block - 1) / 2 + of_block) * KP + of_channel) * 2;
  }
  /// The lane's channels in the tile of q at its first token; at its token r; those of other tiles lie a
  /// constant beyond.
  template <typename Number = __nv_bfloat16>
  __device__ uint32_t lane_address() const {
    const auto row = static_cast<unsigned>(own_row());
    const unsigned offset = static_cast<unsigned>(own_channel()) * sizeof(Number);  // of a row
    return base + offset / 128 * kPanelBytes + row * 128 + offset % 128;
  }
  __device__ static uint32_t address(uint32_t first, int r) { return (first ^ (r << 4)) + r * 128; }
  /// Keys padded to 64 leave half of the warps without channels.
  __device__ bool has_channels() const { return KP > 64 || own_half() == 0; }
  // The chunk's place waits in shared memory: of its first token the row of [N, HV] and where it lies in the
  // decayed q, k and write key, its slot and its tokens.
  enum Kept { kRow, kOutQ, kOutK, kOutWriteKey, kSlot, kNumKept };
  __device__ uint32_t kept_place() const { return by_warp() + 2 * kSubBlocks * 4; }
  __device__ void keep(const ChunkPlace& place) const {
    if (threadIdx.x != 0) return;
    const int64_t row = place.token * shape.num_value_heads + place.head;
    const int64_t number = row * args.row_size;
    const auto address = [number](__nv_bfloat16* rows) { return reinterpret_cast<int64_t>(rows + number); };
    const int64_t values[kNumKept] = {row, address(args.q), address(args.k), address(args.write_key),
                                      place.slot(shape)};
#pragma unroll
    for (int i = 0; i < kNumKept; ++i) {
      write_shared_bits(kept_place() + i * 8, static_cast<uint32_t>(values[i]));
      write_shared_bits(kept_place() + i * 8 + 4, static_cast<uint32_t>(values[i] >> 32));
    }
    write_shared_bits(kept_place() + kNumKept * 8, static_cast<uint32_t>(place.rows));
  }
  __device__ int64_t kept(Kept which) const {
    const float2 bits = read_shared_2(kept_place() + which * 8);
    return static_cast<int64_t>(__float_as_uint(bits.y)) << 32 | __float_as_uint(bits.x);
  }
  __device__ int64_t slot() const { return kept(kSlot); }
  __device__ ChunkPlace place_again() const {
    const int64_t chunk = slot() / shape.num_value_heads;
    return place_of(shape, chunk, static_cast<int>(slot() - chunk * shape.num_value_heads));
  }
  __device__ int rows() const { return static_cast<int>(read_shared_bits(kept_place() + kNumKept * 8)); }
  /// Whether chunk and keys are of full size.
  __device__ bool has_all() const { return rows() == kChunk && shape.key_size == KP; }
  /// Numbers from a token to the next in a [N, HV, K].
  __device__ uint32_t row_stride() const {
    return static_cast<uint32_t>(shape.num_value_heads) * static_cast<uint32_t>(args.row_size);
  }

  // Of fragments of 16 channels of a tile: a step of 16 channels is an exclusive or, 16 tokens and 64
  // channels are added.
  static constexpr int kPanelBytes = RowTile<KP>::kPanelBytes;
  static constexpr int kBlockBytes = kSubBlock * 128;
  __device__ static uint32_t step_of(uint32_t address, int step) { return address ^ (step << 5); }

  template <typename G>
  __device__ void queue_copies(const ChunkPlace& place) const {
    if (place.rows == kChunk && shape.key_size == KP)
      queue_rows<true, G>(place);
    else
      queue_rows<false, G>(place);
    copy_vector_async(beta(), args.in.beta + place.token * shape.num_value_heads + place.head,
                      shape.num_value_heads, place.rows, 0);
    copy_async_commit();
  }
  /// kAll: of a chunk and keys of full size.
  template <bool kAll, typename G>
  __device__ void queue_rows(const ChunkPlace& place) const {
    const auto queue = [&](const auto& tile, const __nv_bfloat16* source, int64_t row_stride, int columns) {
      if constexpr (kAll)
        copy_all_rows_async<kChannelThreads>(tile, source, row_stride);
      else
        copy_rows_async<kChannelThreads>(tile, source, row_stride, place.rows, columns);
    };
    const auto copy = [&](const RowTile<KP>& tile, const DeltaRuleRows& rows, int head) {
      queue(tile, rows_at(rows, place.token, head), rows.token_stride, shape.key_size);
    };
    // Found here rather than with the place: where there are as many heads nothing is divided.
    const int key_head = shape.num_key_heads == shape.num_value_heads
                             ? place.head
                             : place.head / (shape.num_value_heads / shape.num_key_heads);
    constexpr int kWords = static_cast<int>(sizeof(G)) / 2;  // of 16 bits, as which log-decays are copied
    queue(RowTile<KP * kWords>{base + Memory::template logs<G>(own_write_key)},
          static_cast<const __nv_bfloat16*>(args.log_decay) + log_decay_at(args, place, 0, 0) * kWords,
          row_stride() * kWords, shape.key_size * kWords);
    copy(q(), args.in.q, key_head);
    copy(k(), args.in.k, key_head);
    if (own_write_key) copy(w(), args.in.write_key, place.head);
  }

  /// The lane's log-decays of its token r, from shared memory, none smaller than kSmallestChannelDecay.
  template <typename G>
  __device__ float4 read_logs(int tile, int r) const {
    if (!has_channels()) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const uint32_t at = address(lane_address<G>(), r) + tile;
    if constexpr (sizeof(G) == 4) return limited(read_shared_4(at));
    const uint2 words = read_tile(at);
    const float2 low = unpack_bf16(larger_of_pairs(words.x, kSmallestChannelDecayPair));
    const float2 high = unpack_bf16(larger_of_pairs(words.y, kSmallestChannelDecayPair));
    return make_float4(low.x, low.y, high.x, high.y);
  }
  __device__ static float4 limited(float4 x) {
    return make_float4(fmaxf(x.x, kSmallestChannelDecay), fmaxf(x.y, kSmallestChannelDecay),
                       fmaxf(x.z, kSmallestChannelDecay), fmaxf(x.w, kSmallestChannelDecay));
  }
  /// Calls visit(r, log-decays to base 2 over the sub-block until token r, and `before`) for the lane's
  /// tokens; `before`: those until its first one and what is to be added, read(r): natural ones of token r.
  template <class Read, class Visit>
  __device__ static void walk(const float (&before)[4], const Read& read, const Visit& visit) {
    float sums[4] = {before[0], before[1], before[2], before[3]};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 own = read(r);
      sums[0] = fmaf(own.x, kLog2E, sums[0]);
      sums[1] = fmaf(own.y, kLog2E, sums[1]);
      sums[2] = fmaf(own.z, kLog2E, sums[2]);
      sums[3] = fmaf(own.w, kLog2E, sums[3]);
      visit(r, sums);
    }
  }
  /// Log-decays to base 2 until the lane's first token, plus kChannelExponent.
  __device__ void read_before(float (&before)[4]) const {
    const bool second = own_lane() >= 16;
    const float4 x = read_shared_4(first_half(own_block(), own_channel()));
    const float first[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) before[i] = second ? first[i] + kChannelExponent : kChannelExponent;
  }

  /// Sums of the log-decays to base 2 of the warp's tokens, of the first eight and of all, to shared memory.
  /// Notes how many of the tokens, from the first, have columns that carry the inverse of their decays,
  /// whether all have, and whether one anchor will serve them in the backward.
  template <typename G>
  __device__ void sum_logs() const {
    bool mild = true;
    bool all = true;
    const auto note = [&](int channel, float middle, float last) {
      constexpr float kLimit = -kLargestAnchoredExponent * kLog2E;
      mild = mild && middle >= kLimit && last - middle >= kLimit;
      all = all && last >= -kLargestColumn;
      write_shared(first_half(own_block(), channel), middle);
      write_shared(total(own_block(), channel), last);
    };
    const auto read = [this](int r) { return read_logs<G>(Memory::template logs<G>(own_write_key), r); };
    if (has_channels()) {
      if constexpr (sizeof(G) == 2) {
        float sums[4] = {};
        add_pairs_of_logs(sums);
        const int channel = own_half() * 64 + (own_lane() & 3) * 16 + (own_lane() >> 2);
        note(channel, sums[0] * kLog2E, sums[1] * kLog2E);
        note(channel + 8, sums[2] * kLog2E, sums[3] * kLog2E);
      } else {
        float own[4];
        walk({0.0f, 0.0f, 0.0f, 0.0f}, read, [&](int, const float(&sums)[4]) {
#pragma unroll
          for (int i = 0; i < 4; ++i) own[i] = sums[i];
        });
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float other = __shfl_xor_sync(0xffffffffu, own[i], 16);
          if (own_lane() < 16) note(own_channel() + i, own[i], own[i] + other);
        }
      }
    }
    mild = __all_sync(0xffffffffu, mild ? 1 : 0) != 0;
    all = __all_sync(0xffffffffu, all ? 1 : 0) != 0;
    unsigned beyond = 0;
    if (!all) {
      __syncwarp();
      float before[4];
      read_before(before);
      walk(before, read, [&](int, const float(&sums)[4]) {
        bool within = true;
#pragma unroll
        for (int i = 0; i < 4; ++i) within = within && sums[i] >= kChannelExponent - kLargestColumn;
        beyond += within ? 0 : 1;
      });
      beyond += __shfl_xor_sync(0xffffffffu, beyond, 16);
      beyond = __reduce_max_sync(0xffffffffu, beyond);
    }
    if (own_lane() == 0)
      write_shared_bits(by_warp() + own_warp() * 4, (mild ? kOneAnchor : 0) | (all ? kAllInverse : 0) |
                                                        (kSubBlock - beyond) * kColumnsNote);
  }
  /// sums += log-decays in bf16 over the warp's first eight tokens and over all, of the channels 16t + g and
  /// 16t + 8 + g: products with ones, of every 16 channels in the columns of the lanes that take them.
  __device__ void add_pairs_of_logs(float (&sums)[4]) const {
    constexpr uint32_t kOnes = 0x3f803f80;
    const int lane = own_lane();
    const RowTile<KP> logs{base + Memory::template logs<__nv_bfloat16>(own_write_key)};
    const uint32_t first = logs.piece(own_block() * kSubBlock + (lane >> 4) * 8 + (lane & 7),
                                      own_half() * 64 + ((lane >> 3) & 1) * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t channels[4];
      load_blocks_transposed(channels, step_of(first, i));
#pragma unroll
      for (uint32_t& x : channels) x = larger_of_pairs(x, kSmallestChannelDecayPair);
      mma_bf16(sums, channels, lane >> 3 == i ? kOnes : 0, lane >> 2 == 2 * i + 1 ? kOnes : 0);
    }
  }

  /// The notes of the warp with this sub-block and half of the channels.
  __device__ uint32_t notes(int of_block, int of_half) const {
    return read_shared_bits(by_warp() + (of_half * kSubBlocks + of_block) * 4);
  }
  /// What holds for all of them.
  __device__ uint32_t common_notes() const {
    const uint4 first = read_shared_piece(by_warp());
    const uint4 second = read_shared_piece(by_warp() + 16);
    return first.x & first.y & first.z & first.w & second.x & second.y & second.z & second.w;
  }
  __device__ int inverse_columns(int of_half) const {
    return static_cast<int>(notes(own_block(), of_half) / kColumnsNote);
  }

  /// Squares of q and k and <q, w> of eight tokens: diagonals of products of the rows as given, those of q
  /// above those of k.
  __device__ void find_norms() const {
    const int lane = own_lane();
    float of_query[4] = {};
    float of_key[4] = {};
    float of_write[4] = {};
    const int first = own_block() * kSubBlock + own_half() * 8;
    const auto tile_of = [](int which) { return which == 0 ? Memory::kQuery : Memory::kKey; };
    const uint32_t both_rows = q().piece(first + (lane & 7), (lane >> 4) * 8) + tile_of((lane >> 3) & 1);
    const uint32_t writes = q().piece(first + (lane & 7), ((lane >> 3) & 1) * 8) + Memory::kColumns;
#pragma unroll
    for (int panel = 0; panel < KP / 64; ++panel)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // A token's numbers are in the same registers as a row and as a column.
        uint32_t rows[4];
        load_blocks(rows, step_of(both_rows, i) + panel * kPanelBytes);
        mma_bf16(of_query, rows, rows[0], rows[2]);
        mma_bf16(of_key, rows, rows[1], rows[3]);
      }
    if (own_write_key) {
#pragma unroll
      for (int panel = 0; panel < KP / 64; ++panel)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t rows[4];
          uint32_t write[4];
          load_blocks(rows, step_of(both_rows, i) + panel * kPanelBytes);
          load_blocks(write, step_of(writes, i) + panel * kPanelBytes);
          mma_bf16(of_write, rows, write[0], write[1]);
        }
    }
    const int g = lane >> 2;
    if ((g >> 1) != (lane & 3)) return;  // the pair of columns has not the row's own
    const auto upper = [g](const float(&x)[4]) { return g & 1 ? x[1] : x[0]; };
    keep_norms(first + g, upper(of_query), g & 1 ? of_key[3] : of_key[2],
               own_write_key ? upper(of_write) : upper(of_key));
  }
  /// Of a token, from the squares of q and k and from <q, w>.
  __device__ void keep_norms(int row, float squares_q, float squares_k, float query_write) const {
    const float norm_q = args.normalize ? rsqrtf(squares_q + kChannelNormEpsilon) : 1.0f;
    const float norm_k = args.normalize ? rsqrtf(squares_k + kChannelNormEpsilon) : 1.0f;
    write_shared(k_rstd() + row * 4, norm_k);
    write_shared(self() + row * 4, query_write);
    if (row < rows()) {
      const int64_t at = kept(kRow) + row * shape.num_value_heads;
      args.out.q_rstd[at] = norm_q;
      args.out.k_rstd[at] = norm_k;
    }
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
  /// out += log-decays of the lane's channels over a sub-block.
  __device__ void add_total(float (&out)[4], int of_block) const {
    const float4 x = read_shared_4(total(of_block, own_channel()));
    out[0] += x.x;
    out[1] += x.y;
    out[2] += x.z;
    out[3] += x.w;
  }

  /// The lane's channels and tokens of a decayed [N, HV, K]; kAll: of a chunk and keys of full size.
  template <bool kAll>
  class RowsOut {
   public:
    /// From `which` of what is kept.
    __device__ RowsOut(const ChannelChunk& part, Kept which)
        : first_(reinterpret_cast<char*>(part.kept(which)) +
                 (static_cast<uint32_t>(own_row()) * part.row_stride() + own_channel()) * 2),
          stride_(part.row_stride() * 2),
          count_(own_channel() < part.shape.key_size ? part.rows() - own_row() : 0) {}
    __device__ void store(int r, uint2 words) const {
      if (kAll || r < count_) store_words(first_ + static_cast<uint64_t>(stride_) * r, words.x, words.y);
    }

   private:
    char* first_;
    uint32_t stride_;  // bytes
    int count_;
  };

  /// Rows with the decays and columns with the inverse of the decays within 16 tokens; and, to global memory,
  /// rows with the decays since the chunk's start and the write key with those until its end.
  template <bool kOwnWriteKey, typename G>
  __device__ void decay_tiles() const {
    const int block = own_block();
    float until_end[4] = {};   // log-decays from the start of the warp's tokens to the end of the chunk
    float from_start[4] = {};  // of all sub-blocks before; then decays, less the power of the rows
#pragma unroll
    for (int of = 0; of < kSubBlocks; ++of) {
      if (of >= block)
        add_total(until_end, of);
      else
        add_total(from_start, of);
    }
    if (block == 0 && own_lane() < 16) {
      float* to = args.chunk_decay + slot() * args.padded_size + own_channel();
      *reinterpret_cast<float4*>(to) = make_float4(exp2_approx(until_end[0]), exp2_approx(until_end[1]),
                                                   exp2_approx(until_end[2]), exp2_approx(until_end[3]));
    }
    bool plain = has_all();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      plain = plain && until_end[i] >= -kLargestEnd;
      until_end[i] += kChannelExponent;  // as `before` has it
      from_start[i] = exp2_approx(from_start[i]) * kChannelRowScale;
    }
    if (__all_sync(0xffffffffu, plain ? 1 : 0) == 0) {
      decay_rows<kOwnWriteKey, false, G>(until_end, from_start);
    } else {
#pragma unroll
      for (float& x : until_end) x = exp2_approx(x);
      decay_rows<kOwnWriteKey, true, G>(until_end, from_start);
    }
  }
  /// The same of the lane's tokens. kPlain: of a chunk and keys of full size where `until_end` is a decay, to
  /// be multiplied with the inverse of others.
  template <bool kOwnWriteKey, bool kPlain, typename G>
  __device__ void decay_rows(const float (&until_end)[4], const float (&from_start)[4]) const {
    const RowsOut<kPlain> query_out(*this, kOutQ);
    const RowsOut<kPlain> key_out(*this, kOutK);
    const RowsOut<kPlain> write_out(*this, kOutWriteKey);
    const uint32_t first = lane_address();
    const uint32_t norms = k_rstd() + own_row() * 4;
    float4 four_norms = {};
    const auto read = [this](int r) { return read_logs<G>(Memory::template logs<G>(kOwnWriteKey), r); };
    float before[4];
    read_before(before);
    walk(before, read, [&](int r, const float(&log)[4]) {
      const uint32_t at = address(first, r);
      const uint2 query = read_tile(at + Memory::kQuery);
      const uint2 key = read_tile(at + Memory::kKey);
      const uint2 write = kOwnWriteKey ? read_tile(at + Memory::kColumns) : key;
      if (!kOwnWriteKey && r % 4 == 0) four_norms = read_shared_4(norms + r * 4);
      const float written = r % 4 == 0   ? four_norms.x
                            : r % 4 == 1 ? four_norms.y
                            : r % 4 == 2 ? four_norms.z
                                         : four_norms.w;
      float factors[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) factors[i] = exp2_approx(log[i]);
      const uint2 from_block = rounded(factors);
      write_tile(at + Memory::kQuery, multiply(query, from_block));
      write_tile(at + Memory::kKey, multiply(key, from_block));
#pragma unroll
      for (int i = 0; i < 4; ++i) factors[i] *= from_start[i];
      const uint2 from_chunk = rounded(factors);
      query_out.store(r, multiply(query, from_chunk));
      key_out.store(r, multiply(key, from_chunk));
#pragma unroll
      for (int i = 0; i < 4; ++i) factors[i] = exp2_approx(-log[i]);
      write_tile(at + Memory::kColumns, multiply(write, rounded(factors)));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        factors[i] = kPlain ? factors[i] * until_end[i] : exp2_approx(until_end[i] - log[i]);
        if (!kOwnWriteKey) factors[i] *= written;
      }
      write_out.store(r, multiply(write, rounded(factors)));
    });
  }

  /// Columns from `inverse` on, where the inverse may be too large, with the decays until the end of the 16
  /// tokens.
  template <typename G>
  __device__ void end_columns(int inverse) const {
    const ChunkPlace place = place_again();
    const DeltaRuleRows& rows = own_write_key ? args.in.write_key : args.in.k;
    const __nv_bfloat16* source =
        rows_at(rows, place.token, own_write_key ? place.head : place.key_head) + own_channel();
    const int valid = own_channel() < shape.key_size ? place.rows : 0;
    // The columns may lie over the log-decays.
    const auto read = [&](int r) {
      const auto pair = [&](int channel) { return log_decay_pair<G>(args, place, own_row() + r, channel); };
      const float2 low = pair(own_channel());
      const float2 high = pair(own_channel() + 2);
      return limited(make_float4(low.x, low.y, high.x, high.y));
    };
    float before[4];
    read_before(before);
    float last[4] = {kChannelExponent, kChannelExponent, kChannelExponent, kChannelExponent};
    add_total(last, own_block());
    const uint32_t first = lane_address();
    walk(before, read, [&](int r, const float(&sums)[4]) {
      const int row = own_row() + r;
      if (row % kSubBlock < inverse) return;
      uint2 write = make_uint2(0, 0);
      if (row < valid) write = __ldg(reinterpret_cast<const uint2*>(source + row * rows.token_stride));
      float factors[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) factors[i] = exp2_approx(last[i] - sums[i]);
      write_tile(address(first, r) + Memory::kColumns, multiply(write, rounded(factors)));
    });
  }

  /// The decays from columns to the rows of later sub-blocks: those of the tokens between, of columns that
  /// carry the inverse of theirs also the decays until the end of their sub-block. A pair of channels and a
  /// sub-block of columns a thread.
  __device__ void find_between() const {
    const int of_block = static_cast<int>(thread() / 64);
    const int pair = static_cast<int>(thread() % 64 * 2);
    if (of_block >= kSubBlocks - 1 || pair >= KP) return;
    float2 logs = make_float2(0.0f, 0.0f);
    if ((notes(of_block, pair / 64) & kAllInverse) != 0) {
      const float2 read = read_shared_2(total(of_block, pair));
      logs = make_float2(read.x + kChannelExponent, read.y + kChannelExponent);
    }
#pragma unroll 1
    for (int row_block = of_block + 1; row_block < kSubBlocks; ++row_block) {
      write_shared_bits(between(row_block, of_block, pair),
                        pack_bf16(exp2_approx(logs.x), exp2_approx(logs.y)));
      const float2 read = read_shared_2(total(row_block, pair));
      logs.x += read.x;
      logs.y += read.y;
    }
  }

  /// Columns before the first one that has not, in sub-blocks where not all carry the inverse, with their
  /// decays until the end of the sub-block. The factor in two parts: together they may be smaller than fp32
  /// has where what they give is not.
  __device__ void turn_columns() const {
    const int inverse = inverse_columns(own_half());
    if (!has_channels() || inverse == kSubBlock) return;
    const uint32_t first = lane_address();
    const int until = inverse - own_row() % kSubBlock;
    const float4 all = read_shared_4(total(own_block(), own_channel()));
    float factors[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) factors[i] = exp2_approx((factors[i] + kChannelExponent) * 0.5f);
#pragma unroll 1
    for (int r = 0; r < kRows && r < until; ++r) {
      const uint32_t at = address(first, r) + Memory::kColumns;
      const uint2 x = read_tile(at);
      const float2 low = unpack_bf16(x.x);
      const float2 high = unpack_bf16(x.y);
      const float turned[4] = {low.x * factors[0] * factors[0], low.y * factors[1] * factors[1],
                               high.x * factors[2] * factors[2], high.y * factors[3] * factors[3]};
      write_tile(at, rounded(turned));
    }
  }
};

}  // namespace osdn::kernels
