// First pass of the delta rule: everything of a chunk that does not depend on the state, one block of four
// warps a (chunk, value head). Norms of q and k, sums of the log-decays, the products Q W^T and K W^T, and Y
// = (I + M diag(beta))^-1 M by forward substitution in fp32 (docs/ops/delta_rule.md eq. 4, 11).
#include "kernels/detail/delta_rule_chunk.cuh"
#include "kernels/detail/delta_rule_inverse.cuh"
#include "kernels/detail/delta_rule_launch.h"

namespace osdn::kernels {
namespace {

constexpr float kNormEpsilon = 1e-6f;         // inside the root
constexpr float kSmallestLogDecay = -100.0f;  // its factor is 0 in fp32
constexpr int kPrepareVectors = 4;            // beta, k_rstd, maxima, G

template <int KP>
constexpr int tile_bytes() {
  return kChunk * KP * 2;
}

/// The tiles of q, k and, where it is another, w; M later lies where they were.
template <int KP>
constexpr int prepare_bytes(bool own_write_key) {
  const int tiles = (own_write_key ? 3 : 2) * tile_bytes<KP>();
  return (tiles > System::kBytes ? tiles : System::kBytes) + kPrepareVectors * kVectorBytes;
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

/// Sums G of the log-decays from the chunk's first token to each, to shared memory and with their factors to
/// global memory. By one warp, two tokens a lane.
__device__ void sum_log_decays(const DeltaRulePrepareArgs& args, const ChunkPlace& place, int64_t slot,
                               uint32_t sums, int lane) {
  const int num_heads = args.in.shape.num_value_heads;
  float own[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    own[i] = row < place.rows
                 ? fmaxf(args.in.log_decay[(place.token + row) * num_heads + place.head], kSmallestLogDecay)
                 : 0.0f;
  }
  float sum = own[0] + own[1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float before = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += before;
  }
  const float before = __shfl_up_sync(0xffffffffu, sum, 1);
  const float last = __shfl_sync(0xffffffffu, sum, 31);
  const float first = (lane > 0 ? before : 0.0f) + own[0];
  write_shared_2(sums + lane * 8, first, sum);
  auto* gates = reinterpret_cast<float2*>(args.out.gates + slot * (3 * kChunk)) + lane;
  gates[0] = make_float2(first, sum);
  gates[kChunk / 2] = make_float2(__expf(first), __expf(sum));
  gates[kChunk] = make_float2(__expf(last - first), __expf(last - sum));
}

/// Lower triangular products in accumulators of rows 16 warp + g and + 8 as bf16 to a TriangleTile in global
/// memory. `value(n, i)`: the i-th of the four numbers of columns 8n .. 8n+7.
template <typename Value>
__device__ void store_triangle(__nv_bfloat16* target, const Value& value, int warp, int lane) {
  auto* out = reinterpret_cast<uint32_t*>(target);
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    if (n / 2 > warp) break;
    uint32_t* block = out + TriangleTile::block(warp, n / 2) * 128 + (n & 1) * 32 + lane;
    block[0] = pack_bf16(value(n, 0), value(n, 1));
    block[64] = pack_bf16(value(n, 2), value(n, 3));
  }
}

template <int KP, bool kGated>
__global__ void __launch_bounds__(kPrepareThreads)
    delta_rule_prepare_kernel(const __grid_constant__ DeltaRulePrepareArgs args) {
  const DeltaRuleShape& shape = args.in.shape;
  const int head = static_cast<int>(blockIdx.x % shape.num_value_heads);
  const ChunkPlace place = place_of(shape, blockIdx.x / shape.num_value_heads, head);
  const int64_t slot = place.slot(shape);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool own_write_key = args.in.write_key.data != nullptr;

  const uint32_t base = dynamic_shared();
  const RowTile<KP> q{base};
  const RowTile<KP> k{base + tile_bytes<KP>()};
  const RowTile<KP> w{own_write_key ? base + 2 * tile_bytes<KP>() : k.base};
  const uint32_t vectors = base + prepare_bytes<KP>(own_write_key) - kPrepareVectors * kVectorBytes;
  const uint32_t beta = vectors;
  const uint32_t k_rstd = vectors + kVectorBytes;
  const uint32_t maxima = vectors + 2 * kVectorBytes;  // [4] by warp
  const uint32_t sums = vectors + 3 * kVectorBytes;    // G

  copy_rows_async<kPrepareThreads>(q, rows_at(args.in.q, place.token, place.key_head), args.in.q.token_stride,
                                   place.rows, shape.key_size);
  copy_rows_async<kPrepareThreads>(k, rows_at(args.in.k, place.token, place.key_head), args.in.k.token_stride,
                                   place.rows, shape.key_size);
  if (own_write_key)
    copy_rows_async<kPrepareThreads>(w, rows_at(args.in.write_key, place.token, head),
                                     args.in.write_key.token_stride, place.rows, shape.key_size);
  copy_vector_async(beta, args.in.beta + place.token * shape.num_value_heads + head, shape.num_value_heads,
                    place.rows, 0);
  copy_async_commit();
  if (kGated && warp == 0) sum_log_decays(args, place, slot, sums, lane);
  copy_async_wait<0>();
  __syncthreads();

  const int row = warp * 16 + lane / 4;  // and row + 8
  // exp(G_r - G_s), s <= r
  const auto pair_weight = [&](int r, int s) {
    return kGated ? __expf(read_shared(sums + r * 4) - read_shared(sums + s * 4)) : 1.0f;
  };
  uint32_t rows[KP / 16][4];
#pragma unroll
  for (int i = 0; i < KP / 16; ++i) load_a_of_rows(rows[i], q, warp * 16, i * 16, lane);
  const float2 q_norms = inverse_norms<KP>(rows, args.normalize);
  {
    float products[kChunk / 8][4] = {};
    lower_products<KP>(products, rows, w, warp, lane);
    store_triangle(
        args.out.pairs + slot * kDeltaRuleTriangle,
        [&](int n, int i) {
          const int at = row + (i >> 1) * 8;
          const int column = n * 8 + (lane & 3) * 2 + (i & 1);
          return column <= at ? products[n][i] * pair_weight(at, column) : 0.0f;
        },
        warp, lane);
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
    const float2 writing = own_write_key ? make_float2(1.0f, 1.0f) : column_pair(k_rstd, n, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = row + (i >> 1) * 8;
      const int column = n * 8 + (lane & 3) * 2 + (i & 1);
      const float factor = (i < 2 ? k_norms.x : k_norms.y) * (i & 1 ? writing.y : writing.x);
      products[n][i] = column < at ? products[n][i] * factor * pair_weight(at, column) : 0.0f;
    }
    const uint32_t at = system.address(row, n * 8 + (lane & 3) * 2);
    write_shared_2(at, products[n][0], products[n][1]);
    write_shared_2(at + 8 * System::kPitch * 4, products[n][2], products[n][3]);
  }
  if constexpr (kGated)
    store_triangle(
        args.out.key_pairs + slot * kDeltaRuleTriangle, [&](int n, int i) { return products[n][i]; }, warp,
        lane);
  __syncthreads();

  solve(system, beta, warp, lane);
  store_inverse(system, args.out, slot, maxima);
}

}  // namespace

void launch(const DeltaRulePrepareArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  const int64_t blocks = shape.num_chunks * shape.num_value_heads;
  if (blocks == 0) return;
  by_key_size(shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    launch_kernel(args.in.log_decay == nullptr ? delta_rule_prepare_kernel<KP, false>
                                               : delta_rule_prepare_kernel<KP, true>,
                  dim3(static_cast<unsigned>(blocks)), kPrepareThreads,
                  prepare_bytes<KP>(args.in.write_key.data != nullptr), args, stream);
  });
}

}  // namespace osdn::kernels
