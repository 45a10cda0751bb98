// Sums for the gradient of a decay a token (docs/ops/delta_rule.md eq. 10).
#pragma once

#include "kernels/detail/delta_rule_chunk.cuh"

namespace osdn::kernels {

/// Row sums less column sums of a strictly lower triangular matrix x, of which the warp has rows g and g+8 of
/// 16: what x adds to the gradient of the sums of log-decays.
class PairSums {
 public:
  /// The numbers in columns 8n + 2t, 8n + 2t + 1 of row g + 8 half.
  __device__ void add(int n, int half, float low, float high) {
    rows_[half] += low + high;
    columns_[2 * n] += low;
    columns_[2 * n + 1] += high;
  }

  /// To [64] floats at `target`. `row`: the lane's first, within the chunk.
  __device__ void store(uint32_t target, int row, int lane) {
    // Lane (g, t) ends up with the sums of columns 8g + 2t and + 1 over the warp's rows.
    exchange<8>(lane & 16, 16);
    exchange<4>(lane & 8, 8);
    exchange<2>(lane & 4, 4);
    write_shared_2(target + lane * 8, -columns_[0], -columns_[1]);
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      rows_[0] += __shfl_xor_sync(0xffffffffu, rows_[0], distance);
      rows_[1] += __shfl_xor_sync(0xffffffffu, rows_[1], distance);
    }
    __syncwarp();
    if ((lane & 3) != 0) return;
    write_shared(target + row * 4, read_shared(target + row * 4) + rows_[0]);
    write_shared(target + (row + 8) * 4, read_shared(target + (row + 8) * 4) + rows_[1]);
  }

 private:
  /// Adds to the first or, if `upper`, the second `Count` columns those of the lane `distance` away.
  template <int Count>
  __device__ void exchange(bool upper, int distance) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const float kept = upper ? columns_[Count + i] : columns_[i];
      const float sent = upper ? columns_[i] : columns_[Count + i];
      columns_[i] = kept + __shfl_xor_sync(0xffffffffu, sent, distance);
    }
  }

  float rows_[2] = {};
  float columns_[kChunk / 4] = {};
};

/// The sum over the warp's lanes up to and with each, and from each on.
__device__ inline float sum_until(float value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}
__device__ inline float sum_from(float value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_down_sync(0xffffffffu, value, distance);
    if (lane + distance < 32) value += other;
  }
  return value;
}

/// The sum of the products of a state [VT, KP] and its gradient by eight warps, each with as many of their
/// 16x16 blocks: from the diagonals of the blocks' products, state times transposed gradient.
template <int KP, int VT>
class StateProduct {
 public:
  /// Takes the warp's share of the state into registers, so that `copy_share` may bring its gradient's there.
  __device__ void hold(const BlockTile<KP>& state, int warp) {
    const uint32_t first = first_of_rows(state, warp);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) load_blocks(state_[i], first + i * 256);
    __syncwarp();
  }

  /// Queues the copy of the warp's share of a state from global memory.
  __device__ static void copy_share(const BlockTile<KP>& target, const __nv_bfloat16* source, int warp) {
    constexpr int kBytes = KP / kWarps * 16;  // of eight rows
    const int lane = copying_thread() % 32;
    const uint32_t offset = (row(warp) * KP + column(warp) * 8) * 2 + lane * 16;
    const char* from = reinterpret_cast<const char*>(source) + offset;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int at = 0; at < kBytes; at += 512)
        copy_async_16(target.base + offset + half * KP * 16 + at, from + half * KP * 16 + at, true);
  }

  /// This lane's share of the sum of what is held and a gradient in shared memory.
  __device__ float sum(const BlockTile<KP>& gradient, int warp, int lane) const {
    const uint32_t first = first_of_columns(gradient, warp);
    Diagonals sums;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      uint32_t block[4];
      load_blocks(block, first + i * 256);
      sums.add(state_[i], block);
    }
    return sums.of_lane(lane);
  }
  /// The same of a state in shared memory and a gradient in global memory.
  __device__ static float sum(const BlockTile<KP>& state, const __nv_bfloat16* gradient, int warp, int lane) {
    const uint32_t first = first_of_rows(state, warp);
    const auto* blocks =
        reinterpret_cast<const uint32_t*>(gradient) + (row(warp) * KP + column(warp) * 8) / 2 + lane;
    Diagonals sums;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      uint32_t of_state[4];
      uint32_t of_gradient[4];
#pragma unroll
      for (int part = 0; part < 4; ++part)
        of_gradient[part] = blocks[(part >> 1) * KP * 4 + (2 * i + (part & 1)) * 32];
      load_blocks(of_state, first + i * 256);
      sums.add(of_state, of_gradient);
    }
    return sums.of_lane(lane);
  }

 private:
  static constexpr int kBlocks = (VT / 16) * (KP / 16) / 8;  // of a warp, side by side
  static constexpr int kWarps = 8 / (VT / 16);               // that share 16 rows

  struct Diagonals {
    float low[4] = {};   // in its upper half rows 0-7 with themselves
    float high[4] = {};  // in its lower half rows 8-15

    /// An A fragment of the state, B fragments of the transposed gradient.
    __device__ void add(const uint32_t (&state)[4], const uint32_t (&gradient)[4]) {
      mma_bf16(low, state, gradient[0], gradient[1]);
      mma_bf16(high, state, gradient[2], gradient[3]);
    }
    __device__ float of_lane(int lane) const {
      const int column = (lane >> 2) - (lane & 3) * 2;  // of row g's own product among the lane's two
      return column == 0 ? low[0] + high[2] : column == 1 ? low[1] + high[3] : 0.0f;
    }
  };

  __device__ static int row(int warp) { return warp / kWarps * 16; }
  __device__ static int column(int warp) { return warp % kWarps * (KP / kWarps); }
  /// What this lane tells `load_blocks` for the first A fragment of the warp's share, for its first B
  /// fragments. The lane is read anew, so that addresses do not stay in registers.
  __device__ static uint32_t first_of_rows(const BlockTile<KP>& tile, int warp) {
    const int lane = copying_thread() % 32;
    return tile.piece(row(warp) + ((lane >> 3) & 1) * 8 + (lane & 7), column(warp) + (lane >> 4) * 8);
  }
  __device__ static uint32_t first_of_columns(const BlockTile<KP>& tile, int warp) {
    const int lane = copying_thread() % 32;
    return tile.piece(row(warp) + (lane >> 4) * 8 + (lane & 7), column(warp) + ((lane >> 3) & 1) * 8);
  }

  uint32_t state_[kBlocks][4];
};

/// What the passes over a chunk leave in shared memory for the gradient of its log-decays: rows of 64 floats.
struct DecayRows {
  static constexpr int kRows = 8;
  uint32_t base;

  // First the PairSums of the eight warps, then, once they are added up:
  static constexpr int kReading =
      0;  // and 1: products of q and k with the parts of dQ and dK through the state
  static constexpr int kWriting = 2;  // and 3: of w with that part of dW, by half of the channels
  static constexpr int kPairs = 4;
  static constexpr int kStates = 5;  // [8] by warp: of the state before the chunk and the gradient after it
  static constexpr int kPlace = 6;   // what `keep` keeps

  __device__ uint32_t at(int which, int token) const { return base + which * kVectorBytes + token * 4; }

  /// By the block's first 64 threads, after a barrier.
  __device__ void add_pairs() const {
    const int token = static_cast<int>(threadIdx.x);
    if (token >= kChunk) return;
    float sum = 0.0f;
    for (int warp = 0; warp < kRows; ++warp) sum += read_shared(at(warp, token));
    write_shared(at(kPairs, token), sum);
  }

  /// Keeps what the end of the pass asks of the chunk's place: in registers it would be in the way of the
  /// products. By the block's first thread, once the pairs are added up; `kept` after the next barrier.
  __device__ void keep(const ChunkPlace& place) const {
    __syncwarp();
    if (threadIdx.x != 0) return;
    write_shared_bits(at(kPlace, 0), static_cast<uint32_t>(place.token));
    write_shared_bits(at(kPlace, 1), static_cast<uint32_t>(place.token >> 32));
    write_shared_bits(at(kPlace, 2), static_cast<uint32_t>(place.rows));
    write_shared_bits(at(kPlace, 3), static_cast<uint32_t>(place.head));
  }
  __device__ ChunkPlace kept(const ChunkPlace& like) const {
    const uint4 read = read_shared_piece(at(kPlace, 0));
    ChunkPlace place = like;
    place.token = static_cast<int64_t>(static_cast<uint64_t>(read.y) << 32 | read.x);
    place.rows = static_cast<int>(read.z);
    place.head = static_cast<int>(read.w);
    return place;
  }

  /// Eq. 10 for tokens 2 lane and 2 lane + 1, by one warp. `whole`: what the chunk leaves of the state.
  __device__ float2 gradient(float whole, int lane) const {
    const auto of = [&](int which) { return read_shared_2(at(which, 2 * lane)); };
    float of_states = 0.0f;
    for (int warp = 0; warp < 8; ++warp) of_states += read_shared(at(kStates, warp));
    of_states *= whole;
    const float2 by_query = of(kReading);
    const float2 by_key = of(kReading + 1);
    const float2 low = of(kWriting);
    const float2 high = of(kWriting + 1);
    const float2 read = from_each(make_float2(by_query.x + by_key.x, by_query.y + by_key.y), lane);
    const float2 written = before_each(make_float2(low.x + high.x, low.y + high.y), lane);
    // The pairs' sums add up to 0 over the chunk, so those from a token on are less those before it. The
    // smaller of the two is exactly 0 at the first token and behind the last that the loss depends on.
    const float2 from = from_each(of(kPairs), lane);
    const float2 before = before_each(of(kPairs), lane);
    const auto straddling = [](float after, float until) {
      return fabsf(after) < fabsf(until) ? after : -until;
    };
    return make_float2(straddling(from.x, before.x) + read.x + written.x + of_states,
                       straddling(from.y, before.y) + read.y + written.y + of_states);
  }

 private:
  /// Of two neighbouring numbers a lane: the sums from each on, and of all before each.
  __device__ static float2 from_each(const float2& x, int lane) {
    const float sum = sum_from(x.x + x.y, lane);
    const float next = __shfl_down_sync(0xffffffffu, sum, 1);
    return make_float2(sum, (lane < 31 ? next : 0.0f) + x.y);
  }
  __device__ static float2 before_each(const float2& x, int lane) {
    const float sum = sum_until(x.x + x.y, lane);
    const float left = __shfl_up_sync(0xffffffffu, sum, 1);
    const float before = lane > 0 ? left : 0.0f;
    return make_float2(before, before + x.x);
  }
};

}  // namespace osdn::kernels
