// Last pass of the delta rule: the gradients of every token (docs/ops/delta_rule.md eq. 8, 9, 12), one block
// of eight warps a (chunk, value head), chunks independent of each other. Warps 0-3 own 16 rows of dQ each,
// warps 4-7 of dK; all share the gradient of the write key. Tiles take turns in 96 KB of shared memory, so
// that two blocks fit on a multiprocessor and one computes while the other loads.
#include "kernels/common/warp.cuh"
#include "kernels/detail/delta_rule_chunk.cuh"
#include "kernels/detail/delta_rule_launch.h"

namespace osdn::kernels {
namespace {

constexpr int kGradientThreads = 256;

// What the rows for the gradient of the decay hold once the straddling sums of the eight warps are added up.
constexpr int kReadingRow = 0;  // and 1: products of q and k with the parts of dQ and dK through the state
constexpr int kWritingRow = 2;  // and 3: of w with that part of dW, by half of the channels
constexpr int kStraddlingRow = 4;
constexpr int kStatesRow = 5;  // [8] by warp: of the state before the chunk and the gradient after it

template <int KP, int VT>
struct GradientMemory {
  static constexpr int kKeyBytes = kChunk * KP * 2;
  static constexpr int kValueBytes = kChunk * VT * 2;
  static constexpr int kLarger = kKeyBytes > kValueBytes ? kKeyBytes : kValueBytes;
  static constexpr int kStateBytes = KP * VT * 2 > 2 * kKeyBytes ? KP* VT * 2 : 2 * kKeyBytes;

  // Rows of kChunk floats for the gradient of the decay.
  static constexpr int kDecayRows = 8;

  // Upstream dO, later q; F, later k; E; a state, later w, later a gradient of a state, later the gradient of
  // the write key in fp32; the two weights dP and dM; vectors.
  static constexpr int kUpstream = 0;
  static constexpr int kSolved = kLarger;
  static constexpr int kError = 2 * kLarger;
  static constexpr int kState = kError + kValueBytes;
  static constexpr int kWeights = kState + kStateBytes;
  static constexpr int kVectors = kWeights + 2 * kSquareBytes;
  static constexpr int kSums = kVectors + 3 * kVectorBytes;  // G, and the rows, with decay
  static constexpr int bytes(bool gated) { return kSums + (gated ? (1 + kDecayRows) * kVectorBytes : 0); }
};

/// acc += rows (16 tokens, this warp's) of a value-sized matrix times `state`, whose rows are value channels.
/// `Load` gives the A fragment of value channels 16k .. 16k+15.
template <int Blocks, int VT, int Columns, typename Load>
__device__ void times_state(float (&acc)[Blocks][4], const BlockTile<Columns>& state, int first_column,
                            int lane, const Load& load) {
#pragma unroll 2
  for (int k = 0; k < VT / 16; ++k) {
    uint32_t a[4];
    load(a, k);
#pragma unroll
    for (int pair = 0; pair < Blocks / 2; ++pair) {
      uint32_t b[4];
      load_b_of_columns(b, state, first_column + pair * 16, k * 16, lane);
      mma_bf16(acc[2 * pair], a, b[0], b[1]);
      mma_bf16(acc[2 * pair + 1], a, b[2], b[3]);
    }
  }
}

/// Of rows g and g+8 in accumulators of Blocks * 8 channels, the products with rows of a matrix whose channel
/// pairs `read(half, n)` gives; the same in the four lanes of a row.
template <int Blocks, typename Read>
__device__ float2 row_dots(const float (&d)[Blocks][4], const Read& read) {
  float dots[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < Blocks; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 x = unpack_bf16(read(half, n));
      dots[half] += x.x * d[n][2 * half] + x.y * d[n][2 * half + 1];
    }
  }
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    dots[0] += __shfl_xor_sync(0xffffffffu, dots[0], distance);
    dots[1] += __shfl_xor_sync(0xffffffffu, dots[1], distance);
  }
  return make_float2(dots[0], dots[1]);
}

/// Through the normalisation y = x rstd: d_x = rstd (d_y - y <y, d_y>), for rows g and g+8 in accumulators,
/// whose x lie in `tile`. Written to the tile's place in bf16.
template <int KP>
__device__ void through_norm(const float (&d)[KP / 8][4], const RowTile<KP>& tile, const float2& rstd,
                             bool normalize, int row, int lane) {
  const float2 dots = row_dots(d, [&](int half, int n) {
    return read_shared_bits(tile.piece(row + half * 8, n * 8) + (lane & 3) * 4);
  });
  const float along[2] = {normalize ? rstd.x * rstd.x * dots.x : 0.0f,
                          normalize ? rstd.y * rstd.y * dots.y : 0.0f};
#pragma unroll
  for (int n = 0; n < KP / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t address = tile.piece(row + half * 8, n * 8) + (lane & 3) * 4;
      const float2 x = unpack_bf16(read_shared_bits(address));
      const float factor = half == 0 ? rstd.x : rstd.y;
      write_shared_bits(address, pack_bf16(factor * (d[n][2 * half] - x.x * along[half]),
                                           factor * (d[n][2 * half + 1] - x.y * along[half])));
    }
  }
}

/// This warp's 16 rows of a tile to [N, HV, columns] in global memory.
template <int Columns>
__device__ void store_rows(__nv_bfloat16* target, const RowTile<Columns>& tile, int first_row,
                           const ChunkPlace& place, int num_heads, int columns, int lane) {
  __syncwarp();
  for (int piece = lane; piece < 16 * (Columns / 8); piece += 32) {
    const int row = first_row + piece / (Columns / 8);
    const int column = piece % (Columns / 8) * 8;
    if (row < place.rows && column < columns)
      *reinterpret_cast<uint4*>(target + ((place.token + row) * num_heads + place.head) * columns + column) =
          read_shared_piece(tile.piece(row, column));
  }
}

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

template <int KP, int VT, bool kGated>
__global__ void __launch_bounds__(kGradientThreads, 2)
    delta_rule_backward_gradients_kernel(const __grid_constant__ DeltaRuleBackwardGradientsArgs args) {
  using Memory = GradientMemory<KP, VT>;
  extern __shared__ __align__(128) unsigned char memory[];
  const DeltaRuleShape& shape = args.in.shape;
  const int head = static_cast<int>(blockIdx.x % shape.num_value_heads);
  const ChunkPlace place = place_of(shape, blockIdx.x / shape.num_value_heads, head);
  const int64_t slot = place.slot(shape);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool of_query = warp < 4;
  const int first_row = (warp & 3) * 16;
  const int row = first_row + (lane >> 2);  // and row + 8
  const bool own_write_key = args.in.write_key.data != nullptr;
  const int value_tiles = delta_rule_padded_value_size(shape.value_size) / VT;

  const uint32_t base = shared_address(memory);
  const RowTile<VT> upstream{base + Memory::kUpstream};
  const SquareTile solved{base + Memory::kSolved};   // [VT, 64]
  const SquareTile error{base + Memory::kError};     // [VT, 64]
  const BlockTile<KP> state{base + Memory::kState};  // [VT, KP]
  const RowTile<KP> q{base + Memory::kUpstream};
  const RowTile<KP> k{base + Memory::kSolved};
  const RowTile<KP> w{own_write_key ? base + Memory::kState : k.base};
  const SquareTile weights[2] = {{base + Memory::kWeights},
                                 {base + Memory::kWeights + kSquareBytes}};  // dP, dM
  const uint32_t q_rstd = base + Memory::kVectors;
  const uint32_t k_rstd = q_rstd + kVectorBytes;
  const uint32_t beta = k_rstd + kVectorBytes;
  const uint32_t sums = base + Memory::kSums;       // G
  const uint32_t decay_rows = sums + kVectorBytes;  // [kDecayRows, 64]
  const auto from_start = [&](int at) { return kGated ? __expf(read_shared(sums + at * 4)) : 1.0f; };
  const auto to_end = [&](int at) {
    return kGated ? __expf(read_shared(sums + (kChunk - 1) * 4) - read_shared(sums + at * 4)) : 1.0f;
  };

  const int64_t value_matrix = slot * value_tiles;  // of [VT, ...] matrices
  const auto copy_scan_tiles = [&](int tile) {
    copy_rows_async<kGradientThreads>(upstream, rows_at(args.d_o, place.token, head) + tile * VT, args.d_o.token_stride,
                            place.rows, shape.value_size - tile * VT);
    copy_flat_async<kGradientThreads, Memory::kValueBytes>(
        solved.base, args.solved + (value_matrix + tile) * VT * kChunk);
  };
  const auto copy_error = [&](int tile) {
    copy_flat_async<kGradientThreads, Memory::kValueBytes>(
        error.base, args.error + (value_matrix + tile) * VT * kChunk);
  };
  const auto copy_state = [&](const __nv_bfloat16* states, int tile) {
    copy_flat_async<kGradientThreads, KP * VT * 2>(state.base, states + (value_matrix + tile) * VT * KP);
  };
  const auto arrived = [] {
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
  };
  // This warp's rows of dO or F.
  const auto own_rows = [&](uint32_t(&a)[4], int block) {
    if (of_query)
      load_a_of_rows(a, upstream, first_row, block * 16, lane);
    else
      load_a_of_columns(a, solved, first_row, block * 16, lane);
  };

  const int64_t key_row = place.token * shape.num_key_heads + place.key_head;
  copy_vector_async(q_rstd, args.prepared.q_rstd + key_row, shape.num_key_heads, place.rows, 0);
  copy_vector_async(k_rstd, args.prepared.k_rstd + key_row, shape.num_key_heads, place.rows, 64);
  copy_vector_async(beta, args.in.beta + place.token * shape.num_value_heads + head, shape.num_value_heads,
                    place.rows, 128);
  if constexpr (kGated)
    copy_flat_async<kGradientThreads, kVectorBytes>(sums, args.prepared.gates + slot * (3 * kChunk));

  // Products of dO and F with E give the weights (eq. 8) and, on the diagonal, the gradient of beta.
  uint32_t fragments[kChunk / 16][4];  // of the weights, times the factors of the write key
  float2 factors;                      // of rows g and g+8: of the query and the scale, or of the key
  {
    float products[kChunk / 8][4] = {};
    for (int tile = 0; tile < value_tiles; ++tile) {
      if (tile > 0) __syncthreads();
      copy_scan_tiles(tile);
      copy_error(tile);
      if (value_tiles == 1) copy_state(args.states, 0);
      arrived();
#pragma unroll 2
      for (int block = 0; block < VT / 16; ++block) {
        uint32_t a[4];
        own_rows(a, block);
#pragma unroll
        for (int pair = 0; pair < kChunk / 16; ++pair) {
          if (pair > (warp & 3)) break;
          uint32_t b[4];
          load_b_of_columns(b, error, pair * 16, block * 16, lane);
          mma_bf16(products[2 * pair], a, b[0], b[1]);
          mma_bf16(products[2 * pair + 1], a, b[2], b[3]);
        }
      }
    }
    const float2 betas = make_float2(read_shared(beta + row * 4), read_shared(beta + (row + 8) * 4));
    const uint32_t rstd = of_query ? q_rstd : k_rstd;
    factors = make_float2(read_shared(rstd + row * 4), read_shared(rstd + (row + 8) * 4));
    const float2 weight =
        of_query ? make_float2(args.in.scale, args.in.scale) : make_float2(-betas.x, -betas.y);
    StraddlingSums straddling;
    const auto* gram = reinterpret_cast<const uint32_t*>(
        (of_query ? args.prepared.pairs : args.prepared.key_pairs) + slot * kDeltaRuleTriangle);
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      const int column = n * 8 + (lane & 3) * 2;
      const float2 column_beta = column_pair(beta, n, lane);
      const float2 writing = own_write_key ? make_float2(1.0f, 1.0f) : column_pair(k_rstd, n, lane);
      uint32_t transposed_use[2];
      float through_decay[2][2];  // gradients of the log-decays between the pairs
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = row + half * 8;
        float pair[2];
        float2 of_pair = make_float2(0.0f, 0.0f);
        if (kGated && n / 2 <= (warp & 3)) {
          of_pair =
              unpack_bf16(gram[TriangleTile::block(warp & 3, n / 2) * 128 + (n & 1) * 32 + half * 64 + lane]);
          if (of_query) {
            const float factor = half == 0 ? factors.x : factors.y;
            of_pair = make_float2(of_pair.x * factor * writing.x, of_pair.y * factor * writing.y);
          }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float product = products[n][2 * half + i];
          if (!of_query && column + i == at && at < place.rows)
            args.d_beta[(place.token + at) * shape.num_value_heads + head] = product;
          const bool below = of_query ? column + i <= at : column + i < at;
          pair[i] =
              below ? product * (half == 0 ? weight.x : weight.y) * (i == 0 ? column_beta.x : column_beta.y)
                    : 0.0f;
          if constexpr (kGated) {
            through_decay[half][i] = pair[i] * (i == 0 ? of_pair.x : of_pair.y);
            if (below) pair[i] *= __expf(read_shared(sums + at * 4) - read_shared(sums + (column + i) * 4));
          }
        }
        const float factor = half == 0 ? factors.x : factors.y;
        transposed_use[half] = pack_bf16(pair[0] * factor, pair[1] * factor);
        fragments[n / 2][(n & 1) * 2 + half] = pack_bf16(pair[0] * writing.x, pair[1] * writing.y);
      }
      const uint32_t target = weights[of_query ? 0 : 1].piece(row, n * 8) + (lane & 3) * 4;
      write_shared_bits(target, transposed_use[0]);
      write_shared_bits(target + 8 * 16 * (kChunk / 8), transposed_use[1]);
      if constexpr (kGated) {
        const float2 sum = straddling.add(through_decay, n, row, lane);
        if (lane < 4) write_shared_2(decay_rows + warp * kVectorBytes + column * 4, sum.x, sum.y);
      }
    }
  }

  // What reads the state: dQ = scale dO S^T, dK = -beta F S^T; with it dV = beta F.
  float d_rows[KP / 8][4] = {};
  const float2 betas = make_float2(read_shared(beta + row * 4), read_shared(beta + (row + 8) * 4));
  for (int tile = 0; tile < value_tiles; ++tile) {
    if (value_tiles > 1) {
      __syncthreads();
      copy_scan_tiles(tile);
      copy_state(args.states, tile);
      arrived();
    }
    times_state<KP / 8, VT>(d_rows, state, 0, lane, [&](uint32_t(&a)[4], int block) {
      own_rows(a, block);
      if (of_query) return;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = row + (i & 1) * 8;
        const int channel = tile * VT + block * 16 + (i >> 1) * 8 + (lane & 3) * 2;
        const float2 f = unpack_bf16(a[i]);
        const float factor = i & 1 ? betas.y : betas.x;
        if (at < place.rows && channel < shape.value_size)
          *reinterpret_cast<uint32_t*>(
              args.d_v + ((place.token + at) * shape.num_value_heads + head) * shape.value_size + channel) =
              pack_bf16(factor * f.x, factor * f.y);
      }
    });
  }
  {
    float2 weight = of_query ? make_float2(args.in.scale, args.in.scale) : make_float2(-betas.x, -betas.y);
    weight = make_float2(weight.x * from_start(row), weight.y * from_start(row + 8));
#pragma unroll
    for (int n = 0; n < KP / 8; ++n) {
      d_rows[n][0] *= weight.x;
      d_rows[n][1] *= weight.x;
      d_rows[n][2] *= weight.y;
      d_rows[n][3] *= weight.y;
    }
  }
  __syncthreads();  // dO, F and the state are done with
  if (kGated && threadIdx.x < kChunk) {
    float sum = 0.0f;
    for (int i = 0; i < 8; ++i) sum += read_shared(decay_rows + i * kVectorBytes + threadIdx.x * 4);
    write_shared(decay_rows + kStraddlingRow * kVectorBytes + threadIdx.x * 4, sum);
  }

  copy_rows_async<kGradientThreads>(q, rows_at(args.in.q, place.token, place.key_head), args.in.q.token_stride,
                          place.rows, shape.key_size);
  copy_rows_async<kGradientThreads>(k, rows_at(args.in.k, place.token, place.key_head), args.in.k.token_stride,
                          place.rows, shape.key_size);
  if (own_write_key)
    copy_rows_async<kGradientThreads>(w, rows_at(args.in.write_key, place.token, head), args.in.write_key.token_stride,
                            place.rows, shape.key_size);
  if (value_tiles > 1) copy_error(0);
  arrived();
  if constexpr (kGated) {
    const RowTile<KP> own = of_query ? q : k;
    const float2 dots = row_dots(d_rows, [&](int half, int n) {
      return read_shared_bits(own.piece(row + half * 8, n * 8) + (lane & 3) * 4);
    });
    if ((lane & 3) == 0) {
      const uint32_t target = decay_rows + (kReadingRow + (of_query ? 0 : 1)) * kVectorBytes;
      write_shared(target + row * 4, dots.x * factors.x);
      write_shared(target + (row + 8) * 4, dots.y * factors.y);
    }
  }
#pragma unroll
  for (int block = 0; block < kChunk / 16; ++block) {
    if (block > (warp & 3)) break;
#pragma unroll
    for (int pair = 0; pair < KP / 16; ++pair) {
      uint32_t b[4];
      load_b_of_columns(b, w, pair * 16, block * 16, lane);
      mma_bf16(d_rows[2 * pair], fragments[block], b[0], b[1]);
      mma_bf16(d_rows[2 * pair + 1], fragments[block], b[2], b[3]);
    }
  }
  if (own_write_key) __syncthreads();  // w is done with, its place is the state's
  copy_state(args.d_states, 0);
  copy_async_commit();

  // The gradient of the write key, rows of tokens again, half of the channels a warp.
  const int first_column = (warp >> 2) * (KP / 2);
  float d_write[KP / 16][4] = {};
  const auto add_pairs = [&] {
#pragma unroll
    for (int of = 0; of < 2; ++of) {
#pragma unroll
      for (int block = 0; block < kChunk / 16; ++block) {
        if (block < (warp & 3)) continue;
        uint32_t a[4];
        load_a_of_columns(a, weights[of], first_row, block * 16, lane);
#pragma unroll
        for (int pair = 0; pair < KP / 32; ++pair) {
          uint32_t b[4];
          load_b_of_columns(b, of == 0 ? q : k, first_column + pair * 16, block * 16, lane);
          mma_bf16(d_write[2 * pair], a, b[0], b[1]);
          mma_bf16(d_write[2 * pair + 1], a, b[2], b[3]);
        }
      }
    }
  };
  if constexpr (!kGated) add_pairs();  // while the gradient of the state arrives
  float of_states = 0.0f;              // this thread's share of the state's product with its gradient
  const float2 writes = make_float2(betas.x * to_end(row), betas.y * to_end(row + 8));
  for (int tile = 0; tile < value_tiles; ++tile) {
    if (tile > 0) {
      __syncthreads();
      copy_error(tile);
      copy_state(args.d_states, tile);
    }
    arrived();
    times_state<KP / 16, VT>(d_write, state, first_column, lane, [&](uint32_t(&a)[4], int block) {
      load_a_of_columns(a, error, first_row, block * 16, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 e = unpack_bf16(a[i]);
        const float factor = i & 1 ? writes.y : writes.x;
        a[i] = pack_bf16(factor * e.x, factor * e.y);
      }
    });
    if constexpr (kGated) {
      const auto* before = reinterpret_cast<const uint4*>(args.states + (value_matrix + tile) * VT * KP);
      for (int piece = static_cast<int>(threadIdx.x); piece < VT * KP / 8; piece += kGradientThreads) {
        const uint4 x = before[piece];
        const uint4 y = read_shared_piece(state.base + piece * 16);
        const auto add = [&](uint32_t left, uint32_t right) {
          const float2 a = unpack_bf16(left);
          const float2 b = unpack_bf16(right);
          of_states += a.x * b.x + a.y * b.y;
        };
        add(x.x, y.x);
        add(x.y, y.y);
        add(x.z, y.z);
        add(x.w, y.w);
      }
    }
  }
  if constexpr (kGated) {
    // What every token wrote for the end of the chunk, half of the channels a warp, and what the chunk leaves
    // of the state.
    const __nv_bfloat16* written = rows_at(args.in.write_key, place.token, head);
    const float2 dots = row_dots(d_write, [&](int half, int n) {
      const int at = row + half * 8;
      const int column = first_column + n * 8;
      if (!own_write_key) return read_shared_bits(k.piece(at, column) + (lane & 3) * 4);
      if (at >= place.rows || column >= shape.key_size) return 0u;
      return *reinterpret_cast<const uint32_t*>(written + at * args.in.write_key.token_stride + column +
                                                (lane & 3) * 2);
    });
    const float2 factor =
        own_write_key ? make_float2(1.0f, 1.0f)
                      : make_float2(read_shared(k_rstd + row * 4), read_shared(k_rstd + (row + 8) * 4));
    if ((lane & 3) == 0) {
      const uint32_t target = decay_rows + (kWritingRow + (warp >> 2)) * kVectorBytes;
      write_shared(target + row * 4, dots.x * factor.x);
      write_shared(target + (row + 8) * 4, dots.y * factor.y);
    }
    of_states = warp_sum(of_states);
    if (lane == 0) write_shared(decay_rows + kStatesRow * kVectorBytes + warp * 4, of_states);
    add_pairs();
  }
  __syncthreads();  // q and k as operands, and the gradient of the state, are done with
  if (kGated && warp == 0) {
    // Eq. 10, two tokens a lane.
    const auto of = [&](int which) { return read_shared_2(decay_rows + which * kVectorBytes + lane * 8); };
    float of_states_sum = 0.0f;
    for (int i = 0; i < 8; ++i) of_states_sum += read_shared(decay_rows + kStatesRow * kVectorBytes + i * 4);
    of_states_sum *= from_start(kChunk - 1);
    const float2 by_query = of(kReadingRow);
    const float2 by_key = of(kReadingRow + 1);
    const float2 low = of(kWritingRow);
    const float2 high = of(kWritingRow + 1);
    const float2 straddling = of(kStraddlingRow);
    const float2 read = make_float2(by_query.x + by_key.x, by_query.y + by_key.y);
    const float2 written = make_float2(low.x + high.x, low.y + high.y);
    const float read_later = sum_from(read.x + read.y, lane);
    const float read_after = __shfl_down_sync(0xffffffffu, read_later, 1);
    const float written_until = sum_until(written.x + written.y, lane);
    const float written_left = __shfl_up_sync(0xffffffffu, written_until, 1);
    const float written_before = lane > 0 ? written_left : 0.0f;
    const float out[2] = {
        straddling.x + read_later + written_before + of_states_sum,
        straddling.y + (lane < 31 ? read_after : 0.0f) + read.y + written_before + written.x + of_states_sum};
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (2 * lane + i < place.rows)
        args.d_log_decay[(place.token + 2 * lane + i) * shape.num_value_heads + head] = out[i];
  }

  if (own_write_key) {
    const RowTile<KP> staged{base + Memory::kState};
#pragma unroll
    for (int n = 0; n < KP / 16; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        write_shared_bits(staged.piece(row + half * 8, first_column + n * 8) + (lane & 3) * 4,
                          pack_bf16(d_write[n][2 * half], d_write[n][2 * half + 1]));
    }
    __syncthreads();
    if (of_query)
      store_rows(args.d_write_key, staged, first_row, place, shape.num_value_heads, shape.key_size, lane);
  } else {
    // To the warps that hold dK, in fp32: pitch KP + 8 floats would not fit, so rows are rotated against
    // conflicts.
    const auto staged = [&](int at, int column) {
      return base + Memory::kState + (at * KP + ((column + at * 8) & (KP - 1))) * 4;
    };
#pragma unroll
    for (int n = 0; n < KP / 16; ++n) {
      const int column = first_column + n * 8 + (lane & 3) * 2;
      write_shared_2(staged(row, column), d_write[n][0], d_write[n][1]);
      write_shared_2(staged(row + 8, column), d_write[n][2], d_write[n][3]);
    }
    __syncthreads();
    if (!of_query) {
#pragma unroll
      for (int n = 0; n < KP / 8; ++n) {
        const int column = n * 8 + (lane & 3) * 2;
        const float2 low = read_shared_2(staged(row, column));
        const float2 high = read_shared_2(staged(row + 8, column));
        d_rows[n][0] += low.x;
        d_rows[n][1] += low.y;
        d_rows[n][2] += high.x;
        d_rows[n][3] += high.y;
      }
    }
  }
  const RowTile<KP> own = of_query ? q : k;
  through_norm<KP>(d_rows, own, factors, args.normalize, row, lane);
  store_rows(of_query ? args.d_q : args.d_k, own, first_row, place, shape.num_value_heads, shape.key_size,
             lane);
}

template <int KP, int VT, bool kGated>
void launch_gradients(const DeltaRuleBackwardGradientsArgs& args, CUstream_st* stream) {
  const int64_t blocks = args.in.shape.num_chunks * args.in.shape.num_value_heads;
  launch_kernel(delta_rule_backward_gradients_kernel<KP, VT, kGated>, dim3(static_cast<unsigned>(blocks)),
                kGradientThreads, GradientMemory<KP, VT>::bytes(kGated), args, stream);
}

}  // namespace

void launch(const DeltaRuleBackwardGradientsArgs& args, CUstream_st* stream) {
  if (args.in.shape.num_chunks * args.in.shape.num_value_heads == 0) return;
  by_key_size(args.in.shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    const bool gated = args.in.log_decay != nullptr;
    if (delta_rule_padded_value_size(args.in.shape.value_size) == 64)
      gated ? launch_gradients<KP, 64, true>(args, stream) : launch_gradients<KP, 64, false>(args, stream);
    else
      gated ? launch_gradients<KP, 128, true>(args, stream) : launch_gradients<KP, 128, false>(args, stream);
  });
}

}  // namespace osdn::kernels
