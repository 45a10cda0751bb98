// Last pass of the delta rule: the gradients of every token (docs/ops/delta_rule.md eq. 8, 9, 12), one block
// of eight warps a (chunk, value head), chunks independent of each other. Warps 0-3 own 16 rows of dQ each,
// warps 4-7 of dK; all share the gradient of the write key. Tiles take turns in 96 KB of shared memory, so
// that two blocks fit on a multiprocessor and one computes while the other loads.
#include "kernels/detail/delta_rule_chunk.cuh"
#include "kernels/detail/delta_rule_launch.h"

namespace osdn::kernels {
namespace {

constexpr int kGradientThreads = 256;

template <int KP, int VT>
struct GradientMemory {
  static constexpr int kKeyBytes = kChunk * KP * 2;
  static constexpr int kValueBytes = kChunk * VT * 2;
  static constexpr int kLarger = kKeyBytes > kValueBytes ? kKeyBytes : kValueBytes;
  static constexpr int kStateBytes = KP * VT * 2 > 2 * kKeyBytes ? KP* VT * 2 : 2 * kKeyBytes;

  // Upstream dO, later q; F, later k; E; a state, later w, later a gradient of a state, later the gradient of
  // the write key in fp32; the two weights dP and dM; vectors.
  static constexpr int kUpstream = 0;
  static constexpr int kSolved = kLarger;
  static constexpr int kError = 2 * kLarger;
  static constexpr int kState = kError + kValueBytes;
  static constexpr int kWeights = kState + kStateBytes;
  static constexpr int kVectors = kWeights + 2 * kSquareBytes;
  static constexpr int kBytes = kVectors + 3 * kVectorBytes;
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

/// Through the normalisation y = x rstd: d_x = rstd (d_y - y <y, d_y>), for rows g and g+8 in accumulators,
/// whose x lie in `tile`. Written to the tile's place in bf16.
template <int KP>
__device__ void through_norm(const float (&d)[KP / 8][4], const RowTile<KP>& tile, const float2& rstd,
                             bool normalize, int row, int lane) {
  float dots[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < KP / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 x = unpack_bf16(read_shared_bits(tile.piece(row + half * 8, n * 8) + (lane & 3) * 4));
      dots[half] += x.x * d[n][2 * half] + x.y * d[n][2 * half + 1];
    }
  }
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    dots[0] += __shfl_xor_sync(0xffffffffu, dots[0], distance);
    dots[1] += __shfl_xor_sync(0xffffffffu, dots[1], distance);
  }
  const float along[2] = {normalize ? rstd.x * rstd.x * dots[0] : 0.0f,
                          normalize ? rstd.y * rstd.y * dots[1] : 0.0f};
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

template <int KP, int VT>
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

  const int64_t value_matrix = slot * value_tiles;  // of [VT, ...] matrices
  const auto copy_scan_tiles = [&](int tile) {
    copy_rows_async<kChunk>(upstream, rows_at(args.d_o, place.token, head) + tile * VT, args.d_o.token_stride,
                            place.rows, shape.value_size - tile * VT);
    copy_flat_async(solved.base, args.solved + (value_matrix + tile) * VT * kChunk, Memory::kValueBytes);
  };
  const auto copy_error = [&](int tile) {
    copy_flat_async(error.base, args.error + (value_matrix + tile) * VT * kChunk, Memory::kValueBytes);
  };
  const auto copy_state = [&](const __nv_bfloat16* states, int tile) {
    copy_flat_async(state.base, states + (value_matrix + tile) * VT * KP, KP * VT * 2);
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
  copy_vector_async(q_rstd, args.prepared.q_rstd + key_row, shape.num_key_heads, place.rows, kChunk);
  copy_vector_async(k_rstd, args.prepared.k_rstd + key_row, shape.num_key_heads, place.rows, kChunk);
  copy_vector_async(beta, args.in.beta + place.token * shape.num_value_heads + head, shape.num_value_heads,
                    place.rows, kChunk);

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
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      const int column = n * 8 + (lane & 3) * 2;
      const float2 column_beta = column_pair(beta, n, lane);
      const float2 writing = own_write_key ? make_float2(1.0f, 1.0f) : column_pair(k_rstd, n, lane);
      uint32_t transposed_use[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = row + half * 8;
        float pair[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float product = products[n][2 * half + i];
          if (!of_query && column + i == at && at < place.rows)
            args.d_beta[(place.token + at) * shape.num_value_heads + head] = product;
          const bool below = of_query ? column + i <= at : column + i < at;
          pair[i] =
              below ? product * (half == 0 ? weight.x : weight.y) * (i == 0 ? column_beta.x : column_beta.y)
                    : 0.0f;
        }
        const float factor = half == 0 ? factors.x : factors.y;
        transposed_use[half] = pack_bf16(pair[0] * factor, pair[1] * factor);
        fragments[n / 2][(n & 1) * 2 + half] = pack_bf16(pair[0] * writing.x, pair[1] * writing.y);
      }
      const uint32_t target = weights[of_query ? 0 : 1].piece(row, n * 8) + (lane & 3) * 4;
      write_shared_bits(target, transposed_use[0]);
      write_shared_bits(target + 8 * 16 * (kChunk / 8), transposed_use[1]);
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
    const float2 weight =
        of_query ? make_float2(args.in.scale, args.in.scale) : make_float2(-betas.x, -betas.y);
#pragma unroll
    for (int n = 0; n < KP / 8; ++n) {
      d_rows[n][0] *= weight.x;
      d_rows[n][1] *= weight.x;
      d_rows[n][2] *= weight.y;
      d_rows[n][3] *= weight.y;
    }
  }
  __syncthreads();  // dO, F and the state are done with

  copy_rows_async<kChunk>(q, rows_at(args.in.q, place.token, place.key_head), args.in.q.token_stride,
                          place.rows, shape.key_size);
  copy_rows_async<kChunk>(k, rows_at(args.in.k, place.token, place.key_head), args.in.k.token_stride,
                          place.rows, shape.key_size);
  if (own_write_key)
    copy_rows_async<kChunk>(w, rows_at(args.in.write_key, place.token, head), args.in.write_key.token_stride,
                            place.rows, shape.key_size);
  if (value_tiles > 1) copy_error(0);
  arrived();
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
        const float factor = i & 1 ? betas.y : betas.x;
        a[i] = pack_bf16(factor * e.x, factor * e.y);
      }
    });
  }
  __syncthreads();  // q and k as operands, and the gradient of the state, are done with

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

template <int KP, int VT>
void launch_gradients(const DeltaRuleBackwardGradientsArgs& args, CUstream_st* stream) {
  const int64_t blocks = args.in.shape.num_chunks * args.in.shape.num_value_heads;
  launch_kernel(delta_rule_backward_gradients_kernel<KP, VT>, dim3(static_cast<unsigned>(blocks)),
                kGradientThreads, GradientMemory<KP, VT>::kBytes, args, stream);
}

}  // namespace

void launch(const DeltaRuleBackwardGradientsArgs& args, CUstream_st* stream) {
  if (args.in.shape.num_chunks * args.in.shape.num_value_heads == 0) return;
  by_key_size(args.in.shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    if (delta_rule_padded_value_size(args.in.shape.value_size) == 64)
      launch_gradients<KP, 64>(args, stream);
    else
      launch_gradients<KP, 128>(args, stream);
  });
}

}  // namespace osdn::kernels
