// The inverse of a chunk (docs/ops/delta_rule.md eq. 11) by one block of four warps: Y = (I + M
// diag(beta))^-1 M from M in shared memory, in fp32, and its way out in two parts of fp16.
#pragma once

#include "kernels/detail/delta_rule_chunk.cuh"

namespace osdn::kernels {

constexpr int kPrepareThreads = 128;
constexpr int kInverseExponent = 14;           // of the largest number stored in fp16
constexpr int kSmallestInverseExponent = -10;  // of a Y that is scaled up to it in full

/// M in shared memory, fp32, which becomes Y in place. Of every eight rows the last four lie four numbers
/// further on, so that both four numbers of eight rows and eight numbers of four rows fall into different
/// banks.
struct System {
  static constexpr int kPitch = 72;  // floats a row
  static constexpr int kBytes = kChunk * kPitch * 4;
  uint32_t base;

  __device__ uint32_t address(int row, int column) const { return base + distance(row, column); }
  /// Bytes from a number in the first row of eight to that so many rows and columns on.
  static constexpr int distance(int rows, int columns) { return (rows * kPitch + (rows & 4) + columns) * 4; }
};

/// The diagonal block of rows `first` .. `first` + 15 by one warp, by forward substitution: y_r = M_rc -
/// sum_{c < s < r} M_rs beta_s y_s. Two lanes a column: lane l and l + 16 take every other four of the s.
__device__ inline void solve_diagonal(const System& system, uint32_t beta, int first, int lane) {
  const int half = lane >> 4;
  const uint32_t left = system.address(first, first + half * 4);
  const uint32_t own = system.address(first, first + (lane & 15));
  float scaled[8] = {};  // beta_s y_s of this lane's s: four of every eight
  const float4 betas[2] = {read_shared_4(beta + (first + half * 4) * 4),
                           read_shared_4(beta + (first + 8 + half * 4) * 4)};
#pragma unroll
  for (int row = 0; row < 16; ++row) {
    float sum = 0.0f;
#pragma unroll
    for (int eight = 0; eight * 8 < row; ++eight) {
      // Right of the diagonal M is zero.
      const float4 m = read_shared_4(left + System::distance(row, eight * 8));
      sum = fmaf(m.x, scaled[eight * 4], sum);
      sum = fmaf(m.y, scaled[eight * 4 + 1], sum);
      sum = fmaf(m.z, scaled[eight * 4 + 2], sum);
      sum = fmaf(m.w, scaled[eight * 4 + 3], sum);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    const float value = read_shared(own + System::distance(row, 0)) - sum;
    const float4& four = betas[row >> 3];
    const float factor = (row & 3) == 0 ? four.x : (row & 3) == 1 ? four.y : (row & 3) == 2 ? four.z : four.w;
    if (((row >> 2) & 1) == half) scaled[(row >> 3) * 4 + (row & 3)] = factor * value;
    __syncwarp();  // all lanes have read the row
    if (half == 0) write_shared(own + System::distance(row, 0), value);
  }
}

/// The block below two solved diagonal blocks of Size rows at `first` and first + Size, for the eight columns
/// and Rows rows of this warp, the `tile`-th and `part`-th: Y21 = (I - Y2 B2) M21 (I - B1 Y1). All warps of
/// the block call it; those that are not `active` only meet the others.
template <int Size, int Rows = Size>
__device__ void merge(const System& system, uint32_t beta, int first, int tile, int lane, int part = 0,
                      bool active = true) {
  const int g = lane >> 2;
  const int t = lane & 3;
  const int below = first + Size;
  const int own_rows = below + part * Rows;
  const int column = first + tile * 8;
  // out -= (block of this warp's rows and columns `from`) * (beta times rows `from`, this warp's columns)
  const auto subtract_product = [&](float(&out)[Rows / 16][4], int from) {
    // Four fp32 are eight 16-bit numbers to the instruction: a row of its blocks.
    const uint32_t left = system.address(own_rows + (lane & 15), from + (lane >> 4) * 4);
    const uint32_t right = system.address(from, column + g) + t * (System::kPitch * 4);
    const uint32_t factors = beta + (from + t) * 4;
#pragma unroll
    for (int k = 0; k < Size; k += 8) {
      const float b0 = read_shared(factors + k * 4) * read_shared(right + System::distance(k, 0));
      const float b1 = read_shared(factors + (k + 4) * 4) * read_shared(right + System::distance(k + 4, 0));
#pragma unroll
      for (int m = 0; m < Rows; m += 16) {
        uint32_t a[4];
        load_blocks(a, left + System::distance(m, k));
        subtract_mma_fp32(out[m / 16], a, b0, b1);
      }
    }
  };
  const uint32_t own_pairs = system.address(own_rows + g, column + 2 * t);
  const auto for_each_pair = [&](float(&x)[Rows / 16][4], const auto& visit) {
#pragma unroll
    for (int m = 0; m < Rows / 16; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        visit(x[m][2 * half], x[m][2 * half + 1], own_pairs + System::distance(m * 16 + half * 8, 0));
  };
  const auto meet_columns = [] {  // the warps that share these columns
    if constexpr (Rows == Size)
      __syncwarp();
    else
      __syncthreads();
  };
  float x[Rows / 16][4];
  if (active) {
    for_each_pair(x, [](float& low, float& high, uint32_t address) {
      const float2 pair = read_shared_2(address);
      low = pair.x;
      high = pair.y;
    });
    subtract_product(x, first);
  }
  __syncthreads();  // M21 has been read by all
  const auto write_back = [&] {
    for_each_pair(x, [](float& low, float& high, uint32_t address) { write_shared_2(address, low, high); });
  };
  if (active) write_back();
  meet_columns();
  if (active) subtract_product(x, below);
  meet_columns();
  if (active) write_back();
  __syncthreads();
}

/// M becomes Y by a block of four or eight warps. `beta`: address of [64] floats. All warps have written
/// their rows and met at a barrier.
template <int Warps = kPrepareThreads / 32>
__device__ void solve(const System& system, uint32_t beta, int warp, int lane) {
  static_assert(Warps == 4 || Warps == 8);
  const bool first_four = Warps == 4 || warp < 4;
  if (first_four) solve_diagonal(system, beta, warp * 16, lane);
  __syncthreads();
  merge<16>(system, beta, warp % 4 / 2 * 32, warp % 2, lane, 0, first_four);
  merge<32, 128 / Warps>(system, beta, 0, warp % 4, lane, warp / 4);
}

/// Y to the chunk's place in fp16, rounded and what rounding took, divided by a power of two. `maxima`:
/// address of a float a warp.
__device__ inline void store_inverse(const System& system, const DeltaRulePrepared& prepared, int64_t slot,
                                     uint32_t maxima) {
  constexpr int kPieces = TriangleTile::kBytes / 16;
  constexpr int kRounds = (kPieces + kPrepareThreads - 1) / kPrepareThreads;
  float values[kRounds][8];
  float largest = 0.0f;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int piece = round * kPrepareThreads + static_cast<int>(threadIdx.x);
    if (piece >= kPieces) break;
    const int block = piece / 32;
    const int block_row = block < 1 ? 0 : block < 3 ? 1 : block < 6 ? 2 : 3;
    const int block_column = block - TriangleTile::block(block_row, 0);
    const uint32_t at = system.address(block_row * 16 + piece / 16 % 2 * 8 + piece % 8,
                                       block_column * 16 + piece / 8 % 2 * 8);
    const float4 low = read_shared_4(at);
    const float4 high = read_shared_4(at + 16);
    const float read[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[round][i] = read[i];
      largest = fmaxf(largest, fabsf(read[i]));
    }
  }
  // Scaled so that the largest is 2^14 .. 2^15: decays make numbers of a chunk small that count beside others
  // as small.
  const unsigned of_warp = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
  if (threadIdx.x % 32 == 0) write_shared(maxima + threadIdx.x / 32 * 4, __uint_as_float(of_warp));
  __syncthreads();
  for (int i = 0; i < kPrepareThreads / 32; ++i) largest = fmaxf(largest, read_shared(maxima + i * 4));
  const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23) - 127, kSmallestInverseExponent);
  const float scale = __uint_as_float((exponent - kInverseExponent + 127) << 23);
  if (threadIdx.x == 0) prepared.inverse_scale[slot] = scale;
  const float inverse_scale = 1.0f / scale;
  auto* target = reinterpret_cast<uint4*>(prepared.inverse + slot * (2 * kDeltaRuleTriangle));
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int piece = round * kPrepareThreads + static_cast<int>(threadIdx.x);
    if (piece >= kPieces) break;
    uint32_t rounded[4];
    uint32_t rest[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = values[round][2 * i] * inverse_scale;
      const float y = values[round][2 * i + 1] * inverse_scale;
      rounded[i] = pack_fp16(x, y);
      const float2 stored = unpack_fp16(rounded[i]);
      rest[i] = pack_fp16(x - stored.x, y - stored.y);
    }
    target[piece] = make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
    target[kPieces + piece] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  }
}

}  // namespace osdn::kernels
