// First pass of the delta rule: everything of a chunk that does not depend on the state, one block of four
// warps a (chunk, value head). Norms of q and k, the products Q W^T and K W^T, and Y = (I + M diag(beta))^-1
// M by forward substitution in fp32 (docs/ops/delta_rule.md eq. 4, 11).
#include "kernels/detail/delta_rule_chunk.cuh"
#include "kernels/detail/delta_rule_launch.h"

namespace osdn::kernels {
namespace {

constexpr int kPrepareThreads = 128;
constexpr int kSystemPitch = 68;           // floats a row of M in shared memory
constexpr float kNormEpsilon = 1e-6f;      // inside the root
constexpr float kLargestInverse = 3.0e4f;  // stored in fp16 without a scale

constexpr int system_bytes() { return kChunk * kSystemPitch * 4; }

template <int KP>
constexpr int tile_bytes() {
  return kChunk * KP * 2;
}

/// The tiles of q, k and, where it is another, w; M later lies where they were.
template <int KP>
constexpr int prepare_bytes(bool own_write_key) {
  const int tiles = (own_write_key ? 3 : 2) * tile_bytes<KP>();
  return (tiles > system_bytes() ? tiles : system_bytes()) + 3 * kVectorBytes;
}

/// 1 / norm of rows g and g+8 of the 16 rows in `fragments`, the same in the four lanes of a row.
template <int KP>
__device__ float2 inverse_norms(const uint32_t (&fragments)[KP / 16][4], bool normalize) {
  float low = 0.0f;
  float high = 0.0f;
#pragma unroll
  for (int k = 0; k < KP / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack_bf16(fragments[k][i]);
      float& sum = i % 2 == 0 ? low : high;
      sum += pair.x * pair.x + pair.y * pair.y;
    }
  }
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    low += __shfl_xor_sync(0xffffffffu, low, distance);
    high += __shfl_xor_sync(0xffffffffu, high, distance);
  }
  if (!normalize) return make_float2(1.0f, 1.0f);
  return make_float2(rsqrtf(low + kNormEpsilon), rsqrtf(high + kNormEpsilon));
}

/// 16 rows times the transposed rows of `w` up to the warp's last one: out[n] are columns 8n .. 8n+7.
template <int KP>
__device__ void lower_products(float (&out)[kChunk / 8][4], const uint32_t (&rows)[KP / 16][4],
                               const RowTile<KP>& w, int warp, int lane) {
#pragma unroll
  for (int pair = 0; pair < kChunk / 16; ++pair) {
    if (pair > warp) break;
#pragma unroll
    for (int k = 0; k < KP / 16; ++k) {
      uint32_t b[4];
      load_b_of_rows(b, w, pair * 16, k * 16, lane);
      mma_bf16(out[2 * pair], rows[k], b[0], b[1]);
      mma_bf16(out[2 * pair + 1], rows[k], b[2], b[3]);
    }
  }
}

/// M in shared memory, fp32, which becomes Y in place.
struct System {
  uint32_t base;

  __device__ uint32_t address(int row, int column) const { return base + (row * kSystemPitch + column) * 4; }
  __device__ float at(int row, int column) const { return read_shared(address(row, column)); }
};

/// The diagonal block of rows `first` .. `first` + 15 by one warp, by forward substitution: y_r = M_rc -
/// sum_{c < s < r} M_rs beta_s y_s. Two lanes a column: lane l and l + 16 take every other four of the s.
__device__ void solve_diagonal(const System& system, uint32_t beta, int first, int lane) {
  const int half = lane >> 4;
  const int column = first + (lane & 15);
  float scaled[8] = {};  // beta_s y_s of this lane's s: four of every eight
#pragma unroll
  for (int row = 0; row < 16; ++row) {
    float sum = 0.0f;
#pragma unroll
    for (int eight = 0; eight * 8 < row; ++eight) {
      // Right of the diagonal M is zero.
      const float4 m = read_shared_4(system.address(first + row, first + eight * 8 + half * 4));
      sum = fmaf(m.x, scaled[eight * 4], sum);
      sum = fmaf(m.y, scaled[eight * 4 + 1], sum);
      sum = fmaf(m.z, scaled[eight * 4 + 2], sum);
      sum = fmaf(m.w, scaled[eight * 4 + 3], sum);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    const float value = system.at(first + row, column) - sum;
    if (((row >> 2) & 1) == half)
      scaled[(row >> 3) * 4 + (row & 3)] = read_shared(beta + (first + row) * 4) * value;
    __syncwarp();  // all lanes have read the row
    if (half == 0) write_shared(system.address(first + row, column), value);
  }
}

/// The block below two solved diagonal blocks of Size rows at `first` and first + Size, for the eight columns
/// of this warp, the `tile`-th: Y21 = (I - Y2 B2) M21 (I - B1 Y1). All warps of the block call it; `work`:
/// whether this one has a tile.
template <int Size>
__device__ void merge(const System& system, uint32_t beta, int first, int tile, int lane) {
  const int g = lane >> 2;
  const int t = lane & 3;
  const int below = first + Size;
  const int column = first + tile * 8;
  // out -= (block of rows `below` and columns `from`, times beta) * (rows `from`, this warp's columns)
  const auto subtract_product = [&](float(&out)[Size / 16][4], int from) {
#pragma unroll
    for (int k = 0; k < Size; k += 8) {
      const float b0 = system.at(from + k + t, column + g);
      const float b1 = system.at(from + k + t + 4, column + g);
      const float beta0 = -read_shared(beta + (from + k + t) * 4);
      const float beta1 = -read_shared(beta + (from + k + t + 4) * 4);
#pragma unroll
      for (int m = 0; m < Size / 16; ++m) {
        const int row = below + m * 16 + g;
        const float a[4] = {beta0 * system.at(row, from + k + t), beta0 * system.at(row + 8, from + k + t),
                            beta1 * system.at(row, from + k + t + 4),
                            beta1 * system.at(row + 8, from + k + t + 4)};
        mma_fp32(out[m], a, b0, b1);
      }
    }
  };
  const auto for_each_pair = [&](float(&x)[Size / 16][4], const auto& visit) {
#pragma unroll
    for (int m = 0; m < Size / 16; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        visit(x[m][2 * half], x[m][2 * half + 1],
              system.address(below + m * 16 + half * 8 + g, column + 2 * t));
  };
  float x[Size / 16][4];
  for_each_pair(x, [](float& low, float& high, uint32_t address) {
    const float2 pair = read_shared_2(address);
    low = pair.x;
    high = pair.y;
  });
  subtract_product(x, first);
  __syncthreads();  // M21 has been read by all
  const auto write_back = [&] {
    for_each_pair(x, [](float& low, float& high, uint32_t address) { write_shared_2(address, low, high); });
  };
  write_back();
  __syncwarp();
  subtract_product(x, below);
  __syncwarp();
  write_back();
  __syncthreads();
}

template <int KP>
__global__ void __launch_bounds__(kPrepareThreads)
    delta_rule_prepare_kernel(const __grid_constant__ DeltaRulePrepareArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  const DeltaRuleShape& shape = args.in.shape;
  const int head = static_cast<int>(blockIdx.x % shape.num_value_heads);
  const ChunkPlace place = place_of(shape, blockIdx.x / shape.num_value_heads, head);
  const int64_t slot = place.slot(shape);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool own_write_key = args.in.write_key.data != nullptr;

  const uint32_t base = shared_address(memory);
  const RowTile<KP> q{base};
  const RowTile<KP> k{base + tile_bytes<KP>()};
  const RowTile<KP> w{own_write_key ? base + 2 * tile_bytes<KP>() : k.base};
  const uint32_t vectors = base + prepare_bytes<KP>(own_write_key) - 3 * kVectorBytes;
  const uint32_t beta = vectors;
  const uint32_t k_rstd = vectors + kVectorBytes;
  const uint32_t maxima = vectors + 2 * kVectorBytes;  // [4] by warp

  copy_rows_async<kChunk>(q, rows_at(args.in.q, place.token, place.key_head), args.in.q.token_stride,
                          place.rows, shape.key_size);
  copy_rows_async<kChunk>(k, rows_at(args.in.k, place.token, place.key_head), args.in.k.token_stride,
                          place.rows, shape.key_size);
  if (own_write_key)
    copy_rows_async<kChunk>(w, rows_at(args.in.write_key, place.token, head), args.in.write_key.token_stride,
                            place.rows, shape.key_size);
  copy_vector_async(beta, args.in.beta + place.token * shape.num_value_heads + head, shape.num_value_heads,
                    place.rows, kChunk);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();

  const int row = warp * 16 + lane / 4;  // and row + 8
  uint32_t rows[KP / 16][4];
#pragma unroll
  for (int i = 0; i < KP / 16; ++i) load_a_of_rows(rows[i], q, warp * 16, i * 16, lane);
  const float2 q_norms = inverse_norms<KP>(rows, args.normalize);
  {
    float products[kChunk / 8][4] = {};
    lower_products<KP>(products, rows, w, warp, lane);
    auto* pairs = reinterpret_cast<uint32_t*>(args.out.pairs + slot * kDeltaRuleTriangle);
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      if (n / 2 > warp) break;
      const int column = n * 8 + (lane & 3) * 2;
      uint32_t* block = pairs + TriangleTile::block(warp, n / 2) * 128 + (n & 1) * 32 + lane;
      block[0] = pack_bf16(column <= row ? products[n][0] : 0.0f, column + 1 <= row ? products[n][1] : 0.0f);
      block[64] =
          pack_bf16(column <= row + 8 ? products[n][2] : 0.0f, column + 1 <= row + 8 ? products[n][3] : 0.0f);
    }
  }
#pragma unroll
  for (int i = 0; i < KP / 16; ++i) load_a_of_rows(rows[i], k, warp * 16, i * 16, lane);
  const float2 k_norms = inverse_norms<KP>(rows, args.normalize);
  if ((lane & 3) == 0) {
    write_shared(k_rstd + row * 4, k_norms.x);
    write_shared(k_rstd + (row + 8) * 4, k_norms.y);
    if (head % (shape.num_value_heads / shape.num_key_heads) == 0) {
      for (int half = 0; half < 2; ++half) {
        if (row + half * 8 >= place.rows) break;
        const int64_t at = (place.token + row + half * 8) * shape.num_key_heads + place.key_head;
        args.out.q_rstd[at] = half == 0 ? q_norms.x : q_norms.y;
        args.out.k_rstd[at] = half == 0 ? k_norms.x : k_norms.y;
      }
    }
  }
  float products[kChunk / 8][4] = {};
  lower_products<KP>(products, rows, w, warp, lane);
  __syncthreads();  // the tiles are done with; k_rstd is there

  const System system{base};
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    const int column = n * 8 + (lane & 3) * 2;
    const float2 writing = own_write_key ? make_float2(1.0f, 1.0f) : column_pair(k_rstd, n, lane);
    const uint32_t at = system.address(row, column);
    write_shared_2(at, column < row ? products[n][0] * (k_norms.x * writing.x) : 0.0f,
                   column + 1 < row ? products[n][1] * (k_norms.x * writing.y) : 0.0f);
    write_shared_2(at + 8 * kSystemPitch * 4,
                   column < row + 8 ? products[n][2] * (k_norms.y * writing.x) : 0.0f,
                   column + 1 < row + 8 ? products[n][3] * (k_norms.y * writing.y) : 0.0f);
  }
  __syncthreads();

  solve_diagonal(system, beta, warp * 16, lane);
  __syncthreads();
  merge<16>(system, beta, warp / 2 * 32, warp % 2, lane);
  merge<32>(system, beta, 0, warp, lane);

  // Out in fp16, rounded and what rounding took, divided by a power of two where fp16 would overflow.
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
  float scale = 1.0f;
  if (__syncthreads_or(largest > kLargestInverse)) {
    for (int distance = 16; distance > 0; distance /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    if (lane == 0) write_shared(maxima + warp * 4, largest);
    __syncthreads();
    for (int i = 0; i < kPrepareThreads / 32; ++i) largest = fmaxf(largest, read_shared(maxima + i * 4));
    if (!isinf(largest)) scale = exp2f(ceilf(log2f(largest / kLargestInverse)));
  }
  if (threadIdx.x == 0) args.out.inverse_scale[slot] = scale;
  const float inverse_scale = 1.0f / scale;
  auto* target = reinterpret_cast<uint4*>(args.out.inverse + slot * (2 * kDeltaRuleTriangle));
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

}  // namespace

void launch(const DeltaRulePrepareArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  const int64_t blocks = shape.num_chunks * shape.num_value_heads;
  if (blocks == 0) return;
  by_key_size(shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    launch_kernel(delta_rule_prepare_kernel<KP>, dim3(static_cast<unsigned>(blocks)), kPrepareThreads,
                  prepare_bytes<KP>(args.in.write_key.data != nullptr), args, stream);
  });
}

}  // namespace osdn::kernels
