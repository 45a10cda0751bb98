// Sums for the gradient of a decay a token (docs/ops/delta_rule.md eq. 10).
#pragma once

#include "kernels/detail/delta_rule_chunk.cuh"

namespace osdn::kernels {

/// Of a lower triangular matrix x, of which the warp has rows g and g+8 of 16: for every token t the sum of
/// x_rs over s < t <= r (the first sum of eq. 10), block of eight columns after block.
class StraddlingSums {
 public:
  /// x: columns 8n + 2t, 8n + 2t + 1 of row `row` and of row + 8. Returns the sums for tokens 8n + 2t and
  /// + 1, over the warp's rows, the same in lanes of equal t.
  __device__ float2 add(const float (&x)[2][2], int n, int row, int lane) {
    const int t = lane & 3;
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float until = x[half][0] + x[half][1];
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        const float left = __shfl_up_sync(0xffffffffu, until, distance, 4);
        if (t >= distance) until += left;
      }
      const float left = __shfl_up_sync(0xffffffffu, until, 1, 4);
      const float before = before_[half] + (t > 0 ? left : 0.0f);
      before_[half] += __shfl_sync(0xffffffffu, until, 3, 4);
      const int token = n * 8 + t * 2;
      if (token <= row + half * 8) sums[0] += before;
      if (token + 1 <= row + half * 8) sums[1] += before + x[half][0];
    }
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], distance);
      sums[1] += __shfl_xor_sync(0xffffffffu, sums[1], distance);
    }
    return make_float2(sums[0], sums[1]);
  }

 private:
  float before_[2] = {0.0f, 0.0f};  // of the columns before the block, by row
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

  // First the straddling sums of the eight warps, then, once they are added up:
  static constexpr int kReading =
      0;  // and 1: products of q and k with the parts of dQ and dK through the state
  static constexpr int kWriting = 2;  // and 3: of w with that part of dW, by half of the channels
  static constexpr int kStraddling = 4;
  static constexpr int kStates = 5;  // [8] by warp: of the state before the chunk and the gradient after it

  __device__ uint32_t at(int which, int token) const { return base + which * kVectorBytes + token * 4; }

  /// By the block's first 64 threads, after a barrier.
  __device__ void add_straddling() const {
    const int token = static_cast<int>(threadIdx.x);
    if (token >= kChunk) return;
    float sum = 0.0f;
    for (int warp = 0; warp < kRows; ++warp) sum += read_shared(at(warp, token));
    write_shared(at(kStraddling, token), sum);
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
    const float2 straddling = of(kStraddling);
    const float2 read = make_float2(by_query.x + by_key.x, by_query.y + by_key.y);
    const float2 written = make_float2(low.x + high.x, low.y + high.y);
    const float read_later = sum_from(read.x + read.y, lane);
    const float after = __shfl_down_sync(0xffffffffu, read_later, 1);
    const float read_after = lane < 31 ? after : 0.0f;
    const float written_until = sum_until(written.x + written.y, lane);
    const float left = __shfl_up_sync(0xffffffffu, written_until, 1);
    const float written_before = lane > 0 ? left : 0.0f;
    return make_float2(straddling.x + read_later + written_before + of_states,
                       straddling.y + read_after + read.y + written_before + written.x + of_states);
  }
};

}  // namespace osdn::kernels
