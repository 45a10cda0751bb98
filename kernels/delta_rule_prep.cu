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

/// The warp's 16 rows of a tile against the rows of the write key up to the warp's last, and 1 / norm of rows
/// g and g+8, the same in the four lanes of a row: from the diagonal of the rows' product with themselves,
/// whose B fragments are the A fragments' own registers. products[n]: columns 8n .. 8n+7.
template <int KP>
__device__ float2 multiply_rows(float (&products)[kChunk / 8][4], const RowTile<KP>& rows,
                                const RowTile<KP>& w, bool normalize, int warp, int lane) {
  float low[4] = {};   // rows 0-7 with themselves, in its upper half
  float high[4] = {};  // rows 8-15, in its lower half
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) products[n][i] = 0.0f;
#pragma unroll 2
  for (int k = 0; k < KP / 16; ++k) {
    uint32_t a[4];
    load_a_of_rows(a, rows, warp * 16, k * 16, lane);
    mma_bf16(low, a, a[0], a[2]);
    mma_bf16(high, a, a[1], a[3]);
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {
      uint32_t b[4];
      load_b_of_rows(b, w, pair * 16, k * 16, lane);
      mma_bf16(products[2 * pair], a, b[0], b[1]);
      mma_bf16(products[2 * pair + 1], a, b[2], b[3]);
    }
  }
  // Row g's own product is in lane 4g + g/2, by the parity of g.
  const int g = lane >> 2;
  const int holder = (lane & ~3) + (g >> 1);
  const float even_low = __shfl_sync(0xffffffffu, low[0], holder);
  const float odd_low = __shfl_sync(0xffffffffu, low[1], holder);
  const float even_high = __shfl_sync(0xffffffffu, high[2], holder);
  const float odd_high = __shfl_sync(0xffffffffu, high[3], holder);
  if (!normalize) return make_float2(1.0f, 1.0f);
  return make_float2(rsqrtf((g & 1 ? odd_low : even_low) + kNormEpsilon),
                     rsqrtf((g & 1 ? odd_high : even_high) + kNormEpsilon));
}

/// Sums G of the log-decays from the chunk's first token to each, to shared memory in units of ln 2 and with
/// their factors to global memory. By one warp, two tokens a lane.
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
  write_shared_2(sums + lane * 8, first * kLog2E, sum * kLog2E);
  auto* gates = reinterpret_cast<float2*>(args.out.gates + slot * (3 * kChunk)) + lane;
  gates[0] = make_float2(first, sum);
  gates[kChunk / 2] = make_float2(__expf(first), __expf(sum));
  gates[kChunk] = make_float2(__expf(last - first), __expf(last - sum));
}

/// Of the lower triangle in accumulators of rows 16 warp + g and + 8: calls `visit(n, i, low, high)` for the
/// pairs of columns 8n + 2t, + 1 of row half i, with numbers beyond the diagonal (and on it, if `kStrict`)
/// set to zero, up to the warp's last block of 16 columns.
template <bool kStrict, typename Visit>
__device__ void for_each_lower(const float (&x)[kChunk / 8][4], int warp, int lane, const Visit& visit) {
  const int distance = (lane >> 2) - (lane & 3) * 2;  // of the row from the first column, within a block of 8
  const bool first = kStrict ? distance > 0 : distance >= 0;
  const bool second = kStrict ? distance > 1 : distance >= 1;
#pragma unroll
  for (int pair = 0; pair < kChunk / 16; ++pair) {
    const int n = 2 * pair;
    if (pair < warp) {
      visit(n, 0, x[n][0], x[n][1]);
      visit(n, 1, x[n][2], x[n][3]);
      visit(n + 1, 0, x[n + 1][0], x[n + 1][1]);
      visit(n + 1, 1, x[n + 1][2], x[n + 1][3]);
    } else if (pair == warp) {
      visit(n, 0, first ? x[n][0] : 0.0f, second ? x[n][1] : 0.0f);
      visit(n, 1, x[n][2], x[n][3]);
      visit(n + 1, 0, 0.0f, 0.0f);
      visit(n + 1, 1, first ? x[n + 1][2] : 0.0f, second ? x[n + 1][3] : 0.0f);
    }
  }
}

/// Where the pair (n, i) of `for_each_lower` lies in a TriangleTile in global memory; `target` is its start.
__device__ inline uint32_t* triangle_pair(__nv_bfloat16* target, int warp, int lane, int n, int i) {
  return reinterpret_cast<uint32_t*>(target) + TriangleTile::block(warp, 0) * 128 + lane + (n >> 1) * 128 +
         (n & 1) * 32 + i * 64;
}

template <int KP, bool kGated>
__global__ void __launch_bounds__(kPrepareThreads, KP > 128 ? 2 : 6)
    delta_rule_prepare_kernel(const __grid_constant__ DeltaRulePrepareArgs args) {
  const DeltaRuleShape& shape = args.in.shape;
  const int head = static_cast<int>(blockIdx.x % shape.num_value_heads);
  // Asked of the lists, not of the place: kept until there, its parts do not all fit the registers.
  const int64_t chunk = blockIdx.x / shape.num_value_heads;
  if (chunk >= shape.chunk_offsets[shape.num_sequences]) return;
  const ChunkPlace place = place_of(shape, chunk, head);
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
  float2 row_sums = make_float2(0.0f, 0.0f);
  if constexpr (kGated) row_sums = make_float2(read_shared(sums + row * 4), read_shared(sums + row * 4 + 32));
  // exp(G_r - G_s) of a pair of columns s; beyond the diagonal 1, not the infinity that it might be.
  const auto pair_weights = [&](int n, int i) {
    if constexpr (!kGated) return make_float2(1.0f, 1.0f);
    const float2 columns = column_pair(sums, n, lane);
    const float own = i == 0 ? row_sums.x : row_sums.y;
    return make_float2(exp2_approx(fminf(own - columns.x, 0.0f)), exp2_approx(fminf(own - columns.y, 0.0f)));
  };
  float products[kChunk / 8][4];
  const float2 q_norms = multiply_rows(products, q, w, args.normalize, warp, lane);
  for_each_lower<false>(products, warp, lane, [&](int n, int i, float low, float high) {
    const float2 weight = pair_weights(n, i);
    *triangle_pair(args.out.pairs + slot * kDeltaRuleTriangle, warp, lane, n, i) =
        pack_bf16(low * weight.x, high * weight.y);
  });
  const float2 k_norms = multiply_rows(products, k, w, args.normalize, warp, lane);
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
  __syncthreads();  // the tiles are done with; k_rstd is there

  const System system{base};
  const uint32_t own_pairs = system.address(row, (lane & 3) * 2);
  for_each_lower<true>(products, warp, lane, [&](int n, int i, float low, float high) {
    const float reading = i == 0 ? k_norms.x : k_norms.y;
    float2 factor = make_float2(reading, reading);
    if (!own_write_key) {
      const float2 writing = column_pair(k_rstd, n, lane);
      factor = make_float2(factor.x * writing.x, factor.y * writing.y);
    }
    if constexpr (kGated) {
      const float2 weight = pair_weights(n, i);
      factor = make_float2(factor.x * weight.x, factor.y * weight.y);
    }
    const float left = low * factor.x;
    const float right = high * factor.y;
    write_shared_2(own_pairs + (n * 8 + i * 8 * System::kPitch) * 4, left, right);
    if constexpr (kGated)
      *triangle_pair(args.out.key_pairs + slot * kDeltaRuleTriangle, warp, lane, n, i) =
          pack_bf16(left, right);
  });
  if ((warp & 1) == 0) {
    // Right of the diagonal blocks, where `merge` reads the first half of 32 rows.
#pragma unroll
    for (int i = 0; i < 4; ++i)
      write_shared_2(own_pairs + ((warp + 1) * 16 + (i & 1) * 8 + (i >> 1) * 8 * System::kPitch) * 4, 0.0f,
                     0.0f);
  }
  __syncthreads();

  solve(system, beta, warp, lane);
  store_inverse(system, args.out, slot, maxima);
}

}  // namespace

void launch(const DeltaRulePrepareArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  const int64_t blocks = shape.num_chunks * shape.num_value_heads;
  if (blocks == 0) return;
  by_any_key_size(shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    launch_kernel(args.in.log_decay == nullptr ? delta_rule_prepare_kernel<KP, false>
                                               : delta_rule_prepare_kernel<KP, true>,
                  dim3(static_cast<unsigned>(blocks)), kPrepareThreads,
                  prepare_bytes<KP>(args.in.write_key.data != nullptr), args, stream);
  });
}

}  // namespace osdn::kernels
