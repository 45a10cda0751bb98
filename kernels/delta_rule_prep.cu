// First pass of the delta rule: everything of a chunk that does not depend on the state, one block of four
// warps a (chunk, value head). Norms of q and k, sums of the log-decays, the products Q W^T and K W^T, and Y
// = (I + M diag(beta))^-1 M by forward substitution in fp32 (docs/ops/delta_rule.md eq. 4, 11).
#include "kernels/common/early_start.cuh"
#include "kernels/detail/delta_rule_chunk.cuh"
#include "kernels/detail/delta_rule_inverse.cuh"
#include "kernels/detail/delta_rule_launch.h"
#include "kernels/detail/delta_rule_products.cuh"

namespace osdn::kernels {
namespace {

constexpr float kNormEpsilon = 1e-6f;         // inside the root
constexpr float kSmallestLogDecay = -100.0f;  // its factor is 0 in fp32
constexpr int kPrepareVectors = 4;            // beta, the write key's factors, maxima, G

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
template <int KP, class Products>
__device__ float2 multiply_rows(float (&products)[kChunk / 8][4], const RowTile<KP>& rows,
                                const RowTile<KP>& w, bool normalize, int warp, int lane) {
  float low[4] = {};   // rows 0-7 with themselves, in its upper half
  float high[4] = {};  // rows 8-15, in its lower half
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) products[n][i] = 0.0f;
  const auto add_squares = [&](const uint32_t(&a)[4]) {
    mma_bf16(low, a, a[0], a[2]);
    mma_bf16(high, a, a[1], a[3]);
  };
  if constexpr (Products::kWarpgroup) {
    // So many channels at a time, and the lane read anew: fragments of all, or addresses kept from one call
    // to the next, would not fit the registers.
    constexpr int kPanel = 64;
#pragma unroll
    for (int first = 0; first < KP; first += kPanel) {
      uint32_t a[kPanel / 16][4];
#pragma unroll
      for (int k = 0; k < kPanel / 16; ++k)
        load_a_of_rows(a[k], rows, warp * 16, first + k * 16, copying_thread() % 32);
      Products::begin(products);
      Products::template add_times_rows<kPanel>(products, a, RowTile<kPanel>{w.piece(0, first)}, lane);
      Products::end();
#pragma unroll
      for (int k = 0; k < kPanel / 16; ++k) add_squares(a[k]);
      Products::template wait<0>(products);
    }
  } else {
#pragma unroll 2
    for (int k = 0; k < KP / 16; ++k) {
      uint32_t a[4];
      load_a_of_rows(a, rows, warp * 16, k * 16, lane);
      add_squares(a);
      Products::template add_block_times_rows<KP>(products, a, w, k, lane);
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

/// Of the lower triangle in accumulators of rows 16 warp + g and + 8: calls `visit(n, upper, lower)` for the
/// pairs of columns 8n + 2t, + 1 of both rows, with numbers beyond the diagonal (and on it, if `kStrict`) set
/// to zero, up to the warp's last block of 16 columns.
template <bool kStrict, typename Visit>
__device__ void for_each_lower(const float (&x)[kChunk / 8][4], int warp, int lane, const Visit& visit) {
  const int distance = (lane >> 2) - (lane & 3) * 2;  // of the row from the first column, within a block of 8
  const bool first = kStrict ? distance > 0 : distance >= 0;
  const bool second = kStrict ? distance > 1 : distance >= 1;
  const auto on_diagonal = [&](float low, float high) {
    return make_float2(first ? low : 0.0f, second ? high : 0.0f);
  };
  constexpr float2 kNone = {0.0f, 0.0f};
#pragma unroll
  for (int pair = 0; pair < kChunk / 16; ++pair) {
    const float(&left)[4] = x[2 * pair];
    const float(&right)[4] = x[2 * pair + 1];
    if (pair < warp) {
      visit(2 * pair, make_float2(left[0], left[1]), make_float2(left[2], left[3]));
      visit(2 * pair + 1, make_float2(right[0], right[1]), make_float2(right[2], right[3]));
    } else if (pair == warp) {
      visit(2 * pair, on_diagonal(left[0], left[1]), make_float2(left[2], left[3]));
      visit(2 * pair + 1, kNone, on_diagonal(right[2], right[3]));
    }
  }
}

/// The warp's rows of a triangle in global memory (TriangleTile), as this lane writes them.
class TriangleRows {
 public:
  __device__ TriangleRows(__nv_bfloat16* triangle, int warp, int lane)
      : rows_(reinterpret_cast<uint32_t*>(triangle) + TriangleTile::block(warp, 0) * 128 + lane) {}

  /// The pairs that `for_each_lower` visits together.
  __device__ void write(int n, const float2& upper, const float2& lower) const {
    uint32_t* to = rows_ + (n >> 1) * 128 + (n & 1) * 32;
    to[0] = pack_bf16(upper.x, upper.y);
    to[64] = pack_bf16(lower.x, lower.y);
  }

 private:
  uint32_t* rows_;
};

/// By component.
__device__ inline float2 product(const float2& x, const float2& y) {
  return make_float2(x.x * y.x, x.y * y.y);
}
__device__ inline float2 product(const float2& x, float y) { return make_float2(x.x * y, x.y * y); }

/// The chunk that comes as the `i`-th of all. Where sequences are of one length, the last chunks of all of
/// them come first and their first chunks last: those the scan begins with, and finds in the L2 cache.
__device__ int64_t chunk_in_turn(const DeltaRuleShape& shape, unsigned i) {
  const auto sequences = static_cast<unsigned>(shape.num_sequences);
  const unsigned each = static_cast<unsigned>(shape.num_chunks) / sequences;
  const unsigned turn = i / sequences;
  return turn < each ? (i - turn * sequences) * each + (each - 1 - turn) : i;
}

template <int KP, bool kGated, class Products>
__device__ void prepare_chunk(const DeltaRulePrepareArgs& args, uint32_t base) {
  let_next_kernel_start();
  const DeltaRuleShape& shape = args.in.shape;
  const int head = static_cast<int>(blockIdx.x % shape.num_value_heads);
  // Asked of the lists, not of the place: kept until there, its parts do not all fit the registers.
  const int64_t chunk = chunk_in_turn(shape, blockIdx.x / shape.num_value_heads);
  if (chunk >= shape.chunk_offsets[shape.num_sequences]) return;
  const ChunkPlace place = place_of(shape, chunk, head);
  const int64_t slot = place.slot(shape);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool own_write_key = args.in.write_key.data != nullptr;

  const RowTile<KP> q{base};
  const RowTile<KP> k{base + tile_bytes<KP>()};
  const RowTile<KP> w{own_write_key ? base + 2 * tile_bytes<KP>() : k.base};
  const uint32_t vectors = base + prepare_bytes<KP>(own_write_key) - kPrepareVectors * kVectorBytes;
  const uint32_t beta = vectors;
  const uint32_t writing = vectors + kVectorBytes;     // factors of the write key as it lies in its tile
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
  Products::publish_shared();
  __syncthreads();

  const int row = warp * 16 + lane / 4;  // and row + 8
  // G of both rows, read where it is used: kept through the products it would not fit the registers.
  const auto sums_of_rows = [&] {
    return kGated ? make_float2(read_shared(sums + row * 4), read_shared(sums + row * 4 + 32))
                  : make_float2(0.0f, 0.0f);
  };
  // exp(G_r - G_s) of a row and a pair of columns s; beyond the diagonal 1, not the infinity that it might
  // be.
  const auto weights = [](float own, const float2& columns) {
    return make_float2(exp2_approx(fminf(own - columns.x, 0.0f)), exp2_approx(fminf(own - columns.y, 0.0f)));
  };
  float products[kChunk / 8][4];
  const float2 q_norms = multiply_rows<KP, Products>(products, q, w, args.normalize, warp, lane);
  float2 row_sums = sums_of_rows();
  const TriangleRows pairs(args.out.pairs + slot * kDeltaRuleTriangle, warp, lane);
  for_each_lower<false>(products, warp, lane, [&](int n, const float2& upper, const float2& lower) {
    if constexpr (kGated) {
      const float2 columns = column_pair(sums, n, lane);
      pairs.write(n, product(upper, weights(row_sums.x, columns)),
                  product(lower, weights(row_sums.y, columns)));
    } else {
      pairs.write(n, upper, lower);
    }
  });
  const float2 k_norms = multiply_rows<KP, Products>(products, k, w, args.normalize, warp, lane);
  if ((lane & 3) == 0) {
    write_shared(writing + row * 4, own_write_key ? 1.0f : k_norms.x);
    write_shared(writing + (row + 8) * 4, own_write_key ? 1.0f : k_norms.y);
    if (head % (shape.num_value_heads / shape.num_key_heads) == 0) {
      for (int half = 0; half < 2; ++half) {
        if (row + half * 8 >= place.rows) break;
        const int64_t at = (place.token + row + half * 8) * shape.num_key_heads + place.key_head;
        args.out.q_rstd[at] = half == 0 ? q_norms.x : q_norms.y;
        args.out.k_rstd[at] = half == 0 ? k_norms.x : k_norms.y;
      }
    }
  }
  __syncthreads();  // the tiles are done with; the write key's factors are there

  const System system{base};
  const uint32_t own_pairs = system.address(row, (lane & 3) * 2);
  row_sums = sums_of_rows();
  const TriangleRows key_pairs(args.out.key_pairs + slot * kDeltaRuleTriangle, warp, lane);
  for_each_lower<true>(products, warp, lane, [&](int n, float2 upper, float2 lower) {
    const float2 factor = column_pair(writing, n, lane);
    upper = product(product(upper, factor), k_norms.x);
    lower = product(product(lower, factor), k_norms.y);
    if constexpr (kGated) {
      const float2 columns = column_pair(sums, n, lane);
      upper = product(upper, weights(row_sums.x, columns));
      lower = product(lower, weights(row_sums.y, columns));
      key_pairs.write(n, upper, lower);
    }
    write_shared_2(own_pairs + n * 32, upper.x, upper.y);
    write_shared_2(own_pairs + n * 32 + 8 * System::kPitch * 4, lower.x, lower.y);
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

template <int KP, bool kGated, class Products>
__global__ void __launch_bounds__(kPrepareThreads, KP > 128                                    ? 2
                                                   : KP > 64 && kGated && Products::kWarpgroup ? 5
                                                                                               : 6)
    delta_rule_prepare_kernel(const __grid_constant__ DeltaRulePrepareArgs args) {
  if constexpr (Products::kAvailable) prepare_chunk<KP, kGated, Products>(args, dynamic_shared());
}

template <int KP, bool kGated>
void launch_prepare(const DeltaRulePrepareArgs& args, CUstream_st* stream) {
  auto* kernel = delta_rule_prepare_kernel<KP, kGated, WarpProducts>;
  if constexpr (KP <= kDeltaRuleNarrowKeySize)
    if (has_warpgroups() && !args.in.portable)
      kernel = delta_rule_prepare_kernel<KP, kGated, WarpgroupProducts>;
  const int64_t blocks = args.in.shape.num_chunks * args.in.shape.num_value_heads;
  launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), kPrepareThreads,
                prepare_bytes<KP>(args.in.write_key.data != nullptr), args, stream);
}

}  // namespace

void launch(const DeltaRulePrepareArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  if (shape.num_sequences == 0 || shape.num_chunks * shape.num_value_heads == 0) return;
  by_any_key_size(shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    args.in.log_decay != nullptr ? launch_prepare<KP, true>(args, stream)
                                 : launch_prepare<KP, false>(args, stream);
  });
}

}  // namespace osdn::kernels
