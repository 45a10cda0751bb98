// What the scan over chunks and its reverse share: every warp owns 16 value channels, and of the transposed
// state the rows of those channels, in registers from the first chunk to the last. All products are taken
// transposed (value channels down), so that a warp never needs what another one holds.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/common/mbarrier.cuh"
#include "kernels/detail/delta_rule_chunk.cuh"
#include "kernels/detail/delta_rule_launch.h"
#include "kernels/detail/delta_rule_products.cuh"
#include "kernels/detail/delta_rule_solve.cuh"

namespace osdn::kernels {

constexpr int kWarpChannels = 16;

// Registers of a thread that computes and of one that copies, in a block of eight and four warps.
constexpr int kComputeRegisters = 224;
constexpr int kCopyRegisters = 56;

/// Of the barriers of so many stages.
constexpr int scan_barrier_bytes(int stages) { return 4 * stages * kMbarrierBytes; }

/// The two parts in which a stage is filled and given back where there is a write key, and so no room for a
/// third stage: the tiles that a chunk is done with long before its end, q and the other one that the old
/// state is multiplied with (k forward, the write key in reverse), and the others. Without, all is late.
enum class StagePart { kEarly, kLate };

/// How the state decays: not; by a factor a token; or by a factor a chunk and key channel, the rows carrying
/// what lies within the chunk.
enum class Decay { kNone, kScalar, kChannel };

/// The tiles of one chunk in shared memory. `value` holds V in forward, dO in the reverse scan.
template <int KP, int Warps, Decay kDecay, class Products>
struct ScanStage {
  static constexpr bool kWide = kDecay == Decay::kChannel;  // both factors of the solve as pairs of bf16
  static constexpr int kCopyWarps = Products::kWarpgroup ? 4 : 0;  // that do nothing else, the block's first
  static constexpr int kCopyThreads = (Products::kWarpgroup ? kCopyWarps : Warps) * 32;
  static constexpr int kThreads = (kCopyWarps + Warps) * 32;  // of the block
  static constexpr int kComputeWarps = Warps;
  static constexpr int kValues = Warps * kWarpChannels;
  static constexpr int kKeyBytes = kChunk * KP * 2;
  static constexpr int kValueBytes = kChunk * kValues * 2;
  static constexpr int kSolveBytes = 3 * Products::kTriangleBytes;
  static constexpr int kVectorsBytes = 3 * kVectorBytes + 16 +
                                       (kDecay == Decay::kScalar    ? 2 * kVectorBytes
                                        : kDecay == Decay::kChannel ? KP * 4
                                                                    : 0);

  /// A multiple of 1024, as are the places of all tiles that tensor cores read themselves.
  static constexpr int bytes(bool own_write_key) {
    const int used = (own_write_key ? 3 : 2) * kKeyBytes + kValueBytes + kSolveBytes + kVectorsBytes;
    return Products::kWarpgroup ? (used + 1023) / 1024 * 1024 : used;
  }

  RowTile<KP> q, k, w;
  RowTile<kValues> value;
  typename Products::Triangle inverse, remainder, pairs;  // Y in two parts; q . w
  uint32_t q_rstd, k_rstd, beta;                          // addresses of [64] floats
  uint32_t inverse_scale;                                 // of Y
  uint32_t write_scale;                                   // of [64] floats or 0: 1
  uint32_t decay;  // scalar: of exp G, exp(G_C - G) [2, 64]; channel: exp(G_C) [KP]

  __device__ ScanStage(uint32_t base, bool own_write_key)
      : q{base},
        k{base + kKeyBytes},
        w{own_write_key ? base + 2 * kKeyBytes : base + kKeyBytes},
        value{base + (own_write_key ? 3 : 2) * kKeyBytes},
        inverse{value.base + kValueBytes},
        remainder{inverse.base + Products::kTriangleBytes},
        pairs{remainder.base + Products::kTriangleBytes},
        q_rstd(inverse.base + kSolveBytes),
        k_rstd(q_rstd + kVectorBytes),
        beta(k_rstd + kVectorBytes),
        inverse_scale(beta + kVectorBytes),
        write_scale(own_write_key ? 0 : k_rstd),
        decay(inverse_scale + 16) {}

  /// What copies leave as it is: zeros above the diagonals.
  __device__ void clear() const {
    for (int at = static_cast<int>(threadIdx.x) * 8; at < kSolveBytes; at += static_cast<int>(blockDim.x) * 8)
      write_shared_2(inverse.base + at, 0.0f, 0.0f);
  }

  /// exp G of two columns, and exp(G_C - G); 1 where the decay is not by token.
  __device__ float2 from_start_pair(int block, int lane) const {
    return kDecay == Decay::kScalar ? column_pair(decay, block, lane) : make_float2(1.0f, 1.0f);
  }
  __device__ float2 to_end_pair(int block, int lane) const {
    return kDecay == Decay::kScalar ? column_pair(decay + kVectorBytes, block, lane)
                                    : make_float2(1.0f, 1.0f);
  }
  /// What the chunk leaves of the state, for key channels 2t, 2t+1 of block `block`.
  __device__ float2 whole_pair(int block, int lane) const {
    if constexpr (kDecay == Decay::kChannel) return column_pair(decay, block, lane);
    const float whole = kDecay == Decay::kScalar ? read_shared(decay + (kChunk - 1) * 4) : 1.0f;
    return make_float2(whole, whole);
  }

  /// Factors of the write key as it lies in its tile, for columns 2t, 2t+1 of block `block`.
  __device__ float2 write_pair(int block, int lane) const {
    return write_scale == 0 ? make_float2(1.0f, 1.0f) : column_pair(write_scale, block, lane);
  }

  /// Queues the copies of a part. `ready()` is called before anything is read that the pass before made:
  /// `prepared`, and rows that carry their decays.
  template <StagePart kPart, bool kReverse, typename Ready>
  __device__ void copy_async(const DeltaRuleInputs& in, const DeltaRulePrepared& prepared,
                             const DeltaRuleRows& values, const float* chunk_decay, const ChunkPlace& place,
                             int first_channel, const Ready& ready) const {
    const DeltaRuleShape& shape = in.shape;
    const auto copy_keys = [&](const RowTile<KP>& tile, const DeltaRuleRows& rows, int head) {
      copy_rows_async<kCopyThreads>(tile, rows_at(rows, place.token, head), rows.token_stride, place.rows,
                                    shape.key_size);
    };
    const bool own_write_key = write_scale == 0;
    if constexpr (kPart == StagePart::kEarly) {
      if (!own_write_key) return;
      if constexpr (kDecay == Decay::kChannel) ready();
      if constexpr (kReverse)
        copy_keys(w, in.write_key, place.head);
      else
        copy_keys(k, in.k, place.key_head);
      copy_keys(q, in.q, place.key_head);
      return;
    }
    if (!own_write_key || kReverse) copy_keys(k, in.k, place.key_head);
    if (!own_write_key) copy_keys(q, in.q, place.key_head);
    copy_rows_async<kCopyThreads>(value, rows_at(values, place.token, place.head) + first_channel,
                                  values.token_stride, place.rows, shape.value_size - first_channel);
    if (own_write_key && !kReverse) copy_keys(w, in.write_key, place.head);
    if constexpr (kDecay != Decay::kChannel) ready();
    const int64_t slot = place.slot(shape);
    copy_triangles(prepared.inverse + slot * (2 * kDeltaRuleTriangle),
                   prepared.pairs + slot * kDeltaRuleTriangle);
    const int64_t key_row = place.token * shape.num_key_heads + place.key_head;
    copy_vector_async(q_rstd, prepared.q_rstd + key_row, shape.num_key_heads, place.rows, 0);
    copy_vector_async(k_rstd, prepared.k_rstd + key_row, shape.num_key_heads, place.rows, kCopyThreads / 2);
    copy_vector_async(beta, in.beta + place.token * shape.num_value_heads + place.head, shape.num_value_heads,
                      place.rows, kCopyThreads / 2 - 64);
    if (!kWide && threadIdx.x == kCopyThreads - 1)
      copy_async_4(inverse_scale, prepared.inverse_scale + slot, true);
    if constexpr (kDecay == Decay::kScalar)
      copy_flat_async<kCopyThreads, 2 * kVectorBytes>(decay, prepared.gates + (slot * 3 + 1) * kChunk);
    if constexpr (kDecay == Decay::kChannel)
      copy_flat_async<kCopyThreads, KP * 4>(decay, chunk_decay + slot * KP);
  }

 private:
  /// Both parts of Y and the pairs.
  __device__ void copy_triangles(const __half* solve, const __nv_bfloat16* products) const {
    const int thread = copying_thread();
    const char* from[2] = {reinterpret_cast<const char*>(solve), reinterpret_cast<const char*>(products)};
    if constexpr (Products::kWarpgroup) {
      // A warp takes every fourth 16x16 block, so that places are known but for the lane's share of them.
      const int lane = thread % 32;
      const uint32_t rows = inverse.base + (lane >> 4) * 1024 + (lane & 7) * 128;
      const uint32_t piece = ((lane >> 3 & 1) ^ (lane & 7)) << 4;
      uint32_t targets[4];  // by column of blocks
#pragma unroll
      for (int column = 0; column < 4; ++column) targets[column] = rows + (piece ^ column << 5);
      from[0] += lane * 16;
      from[1] += lane * 16 - 2 * TriangleTile::kBytes;
      static_assert(kCopyWarps == 4);
      const int warp = thread / 32;
      if (warp == 0)
        copy_blocks<0>(targets, from);
      else if (warp == 1)
        copy_blocks<1>(targets, from);
      else if (warp == 2)
        copy_blocks<2>(targets, from);
      else
        copy_blocks<3>(targets, from);
    } else {
      constexpr int kPieces = TriangleTile::kBytes / 16;
#pragma unroll
      for (int first = 0; first < 3 * kPieces; first += kCopyThreads) {
        const int piece = first + thread;
        if (piece >= 3 * kPieces) break;
        const int matrix = piece / kPieces;
        copy_async_16(inverse.base + piece * 16,
                      (matrix < 2 ? from[0] : from[1] - 2 * TriangleTile::kBytes) + piece * 16, true);
      }
    }
  }

  /// The blocks that one of the warps that copy takes. `targets`: places in the first of a row of blocks, by
  /// column; `from`: of both parts of Y, and what the pairs would have as their third.
  template <int Warp>
  __device__ static void copy_blocks(const uint32_t (&targets)[4], const char* const (&from)[2]) {
#pragma unroll
    for (int number = Warp; number < 3 * TriangleTile::kBlocks; number += kCopyWarps) {
      const int matrix = number / TriangleTile::kBlocks;
      const int block = number % TriangleTile::kBlocks;
      const int row = (block >= 1) + (block >= 3) + (block >= 6);
      copy_async_16(
          targets[block - TriangleTile::block(row, 0)] + matrix * Products::kTriangleBytes + row * 2048,
          from[matrix / 2] + number * 512, true);
    }
  }
};

/// This warp's 16 rows of a transposed state. value[n]: key channels 8n .. 8n+7.
template <int KP>
struct StateRows {
  float value[KP / 8][4];

  /// From or to a [K, V] state: lane (g, t) holds channels 8n + 2t, 8n + 2t + 1 of value channels g and g
  /// + 8.
  template <typename Visit>
  __device__ void for_each(const DeltaRuleShape& shape, int first_channel, int lane, const Visit& visit) {
#pragma unroll
    for (int n = 0; n < KP / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = n * 8 + (lane & 3) * 2 + (i & 1);
        const int channel = first_channel + (lane >> 2) + (i >> 1) * 8;
        if (key < shape.key_size && channel < shape.value_size)
          visit(value[n][i], static_cast<int64_t>(key) * shape.value_size + channel);
        else
          value[n][i] = 0.0f;
      }
    }
  }

  __device__ void load(const DeltaRuleShape& shape, const float* state, int first_channel, int lane) {
    if (state == nullptr) {
#pragma unroll
      for (int n = 0; n < KP / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) value[n][i] = 0.0f;
      return;
    }
    for_each(shape, first_channel, lane, [state](float& x, int64_t at) { x = state[at]; });
  }

  __device__ void store(const DeltaRuleShape& shape, float* state, int first_channel, int lane) {
    for_each(shape, first_channel, lane, [state](float& x, int64_t at) { state[at] = x; });
  }

  /// Times what a chunk leaves of it.
  template <class Stage>
  __device__ void decay(const Stage& stage, int lane) {
#pragma unroll
    for (int n = 0; n < KP / 8; ++n) {
      const float2 whole = stage.whole_pair(n, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) value[n][i] *= i & 1 ? whole.y : whole.x;
    }
  }

  /// Rounded, as A fragments: fragment k holds key channels 16k .. 16k+15.
  __device__ void round(uint32_t (&out)[KP / 16][4]) const {
#pragma unroll
    for (int k = 0; k < KP / 16; ++k) round_block(out[k], k);
  }
  __device__ void round_block(uint32_t (&out)[4], int k) const {
    out[0] = pack_bf16(value[2 * k][0], value[2 * k][1]);
    out[1] = pack_bf16(value[2 * k][2], value[2 * k][3]);
    out[2] = pack_bf16(value[2 * k + 1][0], value[2 * k + 1][1]);
    out[3] = pack_bf16(value[2 * k + 1][2], value[2 * k + 1][3]);
  }
};

/// The k-th of Count A fragments that `store_blocks` stores.
template <int Count>
__device__ void store_fragment(__nv_bfloat16* target, const uint32_t (&fragment)[4], int k, int warp,
                               int lane) {
  auto* out = reinterpret_cast<uint32_t*>(target);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    out[((2 * warp + (i & 1)) * (2 * Count) + 2 * k + (i >> 1)) * 32 + lane] = fragment[i];
}

/// A fragments of 16 rows out to a matrix of 8x8 blocks with `8 * blocks` columns; the rows are block rows 2
/// warp and 2 warp + 1 of `target`.
template <int Count>
__device__ void store_blocks(__nv_bfloat16* target, const uint32_t (&fragments)[Count][4], int warp,
                             int lane) {
#pragma unroll
  for (int k = 0; k < Count; ++k) store_fragment<Count>(target, fragments[k], k, warp, lane);
}

/// What a block of a scan, forward or reverse, is about: a (sequence, value head) pair and its value
/// channels.
template <class Stage>
struct ScanBlock {
  int head;
  int key_head;
  int64_t number;  // of the sequence
  SequencePlace sequence;
  int first_channel;  // of the block
  int warp;           // of those that compute; below 0: it only copies
  int lane;
  bool own_write_key;
  int64_t state_row;  // of the pair's [K, V] in [S, HV, K, V]
  int padded_values;
  uint32_t base;  // of the stages in shared memory
  int stages;

  __device__ ScanBlock(const DeltaRuleInputs& in, uint32_t shared_base, int num_stages)
      : head(static_cast<int>(blockIdx.x % in.shape.num_value_heads)),
        key_head(head / (in.shape.num_value_heads / in.shape.num_key_heads)),
        number(in.shape.order[blockIdx.x / in.shape.num_value_heads]),
        sequence(in.shape, number),
        first_channel(static_cast<int>(blockIdx.y) * Stage::kValues),
        warp(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0) - Stage::kCopyWarps),
        lane(static_cast<int>(threadIdx.x) % 32),
        own_write_key(in.write_key.data != nullptr),
        state_row((number * in.shape.num_value_heads + head) * in.shape.key_size * in.shape.value_size),
        padded_values(delta_rule_padded_value_size(in.shape.value_size)),
        base(shared_base),
        stages(num_stages) {}

  __device__ ChunkPlace place(const DeltaRuleShape& shape, int64_t chunk) const {
    // Warps that only copy have a register for the head of the keys, the others find it anew.
    if constexpr (Stage::kCopyWarps > 0) return {sequence, chunk, head, key_head};
    return {shape, sequence, chunk, head};
  }
  __device__ int first_warp_channel() const { return first_channel + warp * kWarpChannels; }
  __device__ Stage stage(int index) const {
    return Stage(base + index * Stage::bytes(own_write_key), own_write_key);
  }
  /// Barriers behind the stages: a part of the stage's tiles is there; all warps are done with it.
  __device__ uint32_t full(int index, StagePart part) const {
    return base + stages * Stage::bytes(own_write_key) +
           (2 * index + (part == StagePart::kLate ? 1 : 0)) * kMbarrierBytes;
  }
  __device__ uint32_t empty(int index, StagePart part) const { return full(stages + index, part); }
  /// First number of this block's rows in an [M, HV, VP, columns] array, of chunk `slot`.
  __device__ int64_t value_rows(int64_t slot, int columns) const {
    return (slot * padded_values + first_channel) * columns;
  }
};

/// The chunk that comes as the `i`-th, from the first or from the last on.
template <bool kReverse>
__device__ int64_t chunk_at(const SequencePlace& sequence, int64_t i) {
  return kReverse ? sequence.chunks - 1 - i : i;
}

/// Nothing that the warps that copy take out of a stage.
struct NothingToRetire {
  template <class Stage>
  __device__ void operator()(int64_t, const Stage&) const {}
};

/// Calls `call` with either part as an integral constant.
template <typename Call>
__device__ void for_both_parts(const Call& call) {
  call(std::integral_constant<StagePart, StagePart::kEarly>{});
  call(std::integral_constant<StagePart, StagePart::kLate>{});
}

/// Sets the first copies going, by `copy(part, chunk, stage)`. With warpgroups four warps of the block copy
/// chunk after chunk into the parts of stages that the others have done with, and before the late one call
/// `retire(chunk, stage)` for what the others have left there of a chunk; to them this returns true at the
/// end.
template <bool kReverse, class Products, class Stage, typename Copy, typename Retire>
__device__ bool begin_scan(const ScanBlock<Stage>& block, const Copy& copy, const Retire& retire) {
  const int64_t chunks = block.sequence.chunks;
  if constexpr (!Products::kWarpgroup) {
    if (chunks > 0)
      for_both_parts([&](auto part) { copy(part, chunk_at<kReverse>(block.sequence, 0), block.stage(0)); });
    copy_async_commit();
    return false;
  } else {
    for (int i = 0; i < block.stages; ++i) block.stage(i).clear();
    if (threadIdx.x == 0) {
      for (int i = 0; i < block.stages; ++i)
        for_both_parts([&](auto part) {
          mbarrier_init(block.full(i, part), Stage::kCopyThreads);
          mbarrier_init(block.empty(i, part), Stage::kComputeWarps * 32);
        });
    }
    __syncthreads();
    if (block.warp >= 0) {
      if constexpr (Stage::kComputeWarps == 8) take_registers<kComputeRegisters>();
      return false;
    }
    if constexpr (Stage::kComputeWarps == 8) give_registers<kCopyRegisters>();
    constexpr bool kRetires = !std::is_same_v<Retire, NothingToRetire>;
    const int64_t rounds = kRetires ? chunks + block.stages : chunks;
    int index = 0;
    int parity = 1;
    for (int64_t i = 0; i < rounds; ++i) {
      for_both_parts([&](auto part) {
        if (decltype(part)::value == StagePart::kEarly && !block.own_write_key) return;
        mbarrier_wait(block.empty(index, part), parity);
        if constexpr (kRetires && decltype(part)::value == StagePart::kLate)
          if (i >= block.stages)
            retire(chunk_at<kReverse>(block.sequence, i - block.stages), block.stage(index));
        if (!kRetires || i < chunks) {
          copy(part, chunk_at<kReverse>(block.sequence, i), block.stage(index));
          mbarrier_arrive_after_copies(block.full(index, part));
        }
      });
      if (++index == block.stages) {
        index = 0;
        parity ^= 1;
      }
    }
    return true;
  }
}

/// What a chunk's computation is handed and hands back of its stage; the early part is there when it begins,
/// the late one is given back when it ends.
template <class Products>
struct StageParts {
  bool any;            // else the stage is one
  uint32_t late_full;  // barriers
  uint32_t early_empty;
  int parity;

  /// Returns once the late part is there.
  __device__ void wait_for_late() const {
    if constexpr (Products::kWarpgroup) {
      if (!any) return;
      mbarrier_wait(late_full, parity);
      Products::publish_shared();
    }
  }
  /// The early part is done with.
  __device__ void give_early_back() const {
    if constexpr (Products::kWarpgroup)
      if (any) mbarrier_arrive(early_empty);
  }
};

/// Runs `compute(chunk, stage, parts)` for all chunks of a sequence, each brought while those before it are
/// computed where there is more than one stage. Warpgroups go on at their own pace: while one waits for the
/// tensor cores the other has them or computes.
template <bool kReverse, class Products, class Stage, typename Copy, typename Compute>
__device__ void for_each_chunk(const ScanBlock<Stage>& block, const Copy& copy, const Compute& compute) {
  const int64_t chunks = block.sequence.chunks;
  int index = 0;
  int parity = 0;
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t chunk = chunk_at<kReverse>(block.sequence, i);
    const auto copy_next = [&](int into) {
      if (i + 1 < chunks)
        for_both_parts(
            [&](auto part) { copy(part, chunk_at<kReverse>(block.sequence, i + 1), block.stage(into)); });
      copy_async_commit();
    };
    if constexpr (Products::kWarpgroup) {
      mbarrier_wait(block.full(index, block.own_write_key ? StagePart::kEarly : StagePart::kLate), parity);
      Products::publish_shared();
      compute(chunk, block.stage(index),
              StageParts<Products>{block.own_write_key, block.full(index, StagePart::kLate),
                                   block.empty(index, StagePart::kEarly), parity});
      mbarrier_arrive(block.empty(index, StagePart::kLate));
    } else {
      copy_async_wait<0>();
      __syncthreads();
      if (block.stages == 2) copy_next(index ^ 1);
      compute(chunk, block.stage(index), StageParts<Products>{});
      if (block.stages == 1) {
        __syncthreads();
        copy_next(0);
      }
    }
    if (++index == block.stages) {
      index = 0;
      parity ^= 1;
    }
  }
}

/// Calls `call(KP, warps, decay, Products)` for a scan: eight warps share the tiles of 128 value channels;
/// four where there are fewer channels, or so few (sequence, value head) pairs that two blocks a pair fill
/// the device better.
template <typename Call>
void by_scan_shape(const DeltaRuleInputs& in, const float* chunk_decay, const Call& call) {
  const DeltaRuleShape& shape = in.shape;
  const int64_t wide_blocks = shape.num_sequences * shape.num_value_heads * ((shape.value_size + 127) / 128);
  const bool narrow = shape.value_size <= 64 || 2 * wide_blocks <= multiprocessors();
  const auto by_products = [&](auto padded, auto warps, auto decay) {
    if constexpr (decltype(padded)::value <= kDeltaRuleNarrowKeySize) {
      if (has_warpgroups() && !in.portable) return call(padded, warps, decay, WarpgroupProducts{});
    }
    call(padded, warps, decay, WarpProducts{});
  };
  const auto by_decay = [&](auto padded, auto warps) {
    if (in.log_decay != nullptr)
      by_products(padded, warps, std::integral_constant<Decay, Decay::kScalar>{});
    else if (chunk_decay != nullptr)
      by_products(padded, warps, std::integral_constant<Decay, Decay::kChannel>{});
    else
      by_products(padded, warps, std::integral_constant<Decay, Decay::kNone>{});
  };
  by_any_key_size(shape, [&](auto padded) {
    if (narrow)
      by_decay(padded, std::integral_constant<int, 4>{});
    else
      by_decay(padded, std::integral_constant<int, 8>{});
  });
}

/// Stages of `bytes` that a block may have: two hide the copies, a third lets warpgroups drift apart.
template <class Products>
int scan_stages(int bytes) {
  constexpr int kMost = Products::kWarpgroup ? 3 : 2;
  return std::clamp((shared_memory_limit() - scan_barrier_bytes(kMost)) / bytes, 1, kMost);
}

}  // namespace osdn::kernels
