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

/// Of two neighbouring bf16 pairs each, the sum of the products.
__device__ inline float dot_of_pieces(const uint4& x, const uint4& y) {
  const auto pair = [](uint32_t left, uint32_t right) {
    const float2 a = unpack_bf16(left);
    const float2 b = unpack_bf16(right);
    return a.x * b.x + a.y * b.y;
  };
  return pair(x.x, y.x) + pair(x.y, y.y) + pair(x.z, y.z) + pair(x.w, y.w);
}

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

  __device__ uint32_t at(int which, int token) const { return base + which * kVectorBytes + token * 4; }

  /// By the block's first 64 threads, after a barrier.
  __device__ void add_pairs() const {
    const int token = static_cast<int>(threadIdx.x);
    if (token >= kChunk) return;
    float sum = 0.0f;
    for (int warp = 0; warp < kRows; ++warp) sum += read_shared(at(warp, token));
    write_shared(at(kPairs, token), sum);
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
