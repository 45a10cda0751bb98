// Last pass of the delta rule: the gradients of every token (docs/ops/delta_rule.md eq. 8-10, 12), one block
// of eight warps a (chunk, value head), chunks independent of each other. Warps 0-3 own 16 rows of dQ each,
// warps 4-7 of dK; all share the gradient of the write key. Tiles take turns in 96 KB of shared memory, so
// that two blocks fit on a multiprocessor and one computes while the other loads.
#include "kernels/common/warp.cuh"
#include "kernels/detail/delta_rule_chunk.cuh"
#include "kernels/detail/delta_rule_decay_gradient.cuh"
#include "kernels/detail/delta_rule_gradient_products.cuh"
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
  static constexpr int kSums = kVectors + 3 * kVectorBytes;  // with decay: G, and DecayRows
  // Tiles of dO, and of F, that fit where q and k will lie; below wide keys there is no room for several.
  static constexpr int kResident = KP > kDeltaRuleNarrowKeySize ? kLarger / kValueBytes : 1;
  static constexpr int bytes(bool gated) {
    return kSums + (gated ? (1 + DecayRows::kRows) * kVectorBytes : 0);
  }
};

/// Of rows first_row + g and g+8 in accumulators of Blocks * 8 channels from first_column on, the products
/// with the same rows of a tile; alike in the four lanes of a row. The lane is read anew: with the addresses
/// of other readers of the tile in registers too there would be too many.
template <int KP, int Blocks>
__device__ float2 row_dots(const float (&d)[Blocks][4], const RowTile<KP>& tile, int first_row,
                           int first_column) {
  const int lane = copying_thread() % 32;
  float dots[2] = {0.0f, 0.0f};
#pragma unroll
  for (int pair = 0; pair < Blocks / 2; ++pair) {
    uint32_t rows[4];
    load_a_of_rows(rows, tile, first_row, first_column + pair * 16, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack_bf16(rows[i]);
      const float(&of)[4] = d[pair * 2 + (i >> 1)];
      dots[i & 1] += x.x * of[2 * (i & 1)] + x.y * of[2 * (i & 1) + 1];
    }
  }
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    dots[0] += __shfl_xor_sync(0xffffffffu, dots[0], distance);
    dots[1] += __shfl_xor_sync(0xffffffffu, dots[1], distance);
  }
  return make_float2(dots[0], dots[1]);
}

/// Through the normalisation y = x rstd: d_x = rstd (d_y - y <y, d_y>), for rows g and g+8 of rstd d_y in
/// accumulators, whose x lie in `tile`. Written to the tile's place in bf16.
template <int KP>
__device__ void through_norm(const float (&d)[KP / 8][4], const RowTile<KP>& tile, const float2& rstd,
                             bool normalize, int first_row) {
  const int lane = copying_thread() % 32;
  const int row = first_row + (lane >> 2);
  const float2 dots = row_dots(d, tile, first_row, 0);
  const float along[2] = {normalize ? rstd.x * rstd.x * dots.x : 0.0f,
                          normalize ? rstd.y * rstd.y * dots.y : 0.0f};
#pragma unroll
  for (int n = 0; n < KP / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t address = tile.piece(row + half * 8, n * 8) + (lane & 3) * 4;
      const float2 x = unpack_bf16(read_shared_bits(address));
      write_shared_bits(
          address, pack_bf16(d[n][2 * half] - x.x * along[half], d[n][2 * half + 1] - x.y * along[half]));
    }
  }
}

/// This warp's 16 rows of a tile to [N, HV, columns] in global memory.
template <int Columns>
__device__ void store_rows(__nv_bfloat16* target, const RowTile<Columns>& tile, int first_row,
                           const ChunkPlace& place, int num_heads, int columns, int lane) {
  constexpr int kPieces = Columns / 8;  // of a row
  constexpr int kStep = 32 / kPieces;   // rows at a time
  __syncwarp();
  const int column = lane % kPieces * 8;
  const int first = first_row + lane / kPieces;
  const int limit = column < columns ? place.rows : 0;
  const int64_t pitch = static_cast<int64_t>(num_heads) * columns;
  __nv_bfloat16* to = target + ((place.token + first) * num_heads + place.head) * columns + column;
#pragma unroll
  for (int row = 0; row < 16; row += kStep) {
    if (first + row < limit)
      *reinterpret_cast<uint4*>(to) = read_shared_piece(tile.piece(first + row, column));
    to += kStep * pitch;
  }
}

/// dV = beta F of this warp's 16 tokens, from F transposed in 8x8 blocks.
template <int VT>
__device__ void store_d_v(const DeltaRuleBackwardGradientsArgs& args, const BlockTile<kChunk>& solved,
                          const float2& betas, const ChunkPlace& place, int first_row, int first_channel,
                          int lane) {
  const DeltaRuleShape& shape = args.in.shape;
  const int row = first_row + (lane >> 2);
  __nv_bfloat16* to = args.d_v +
                      ((place.token + row) * shape.num_value_heads + place.head) * shape.value_size +
                      first_channel;
  const int64_t eight_rows = int64_t{8} * shape.num_value_heads * shape.value_size;
#pragma unroll
  for (int block = 0; block < VT / 16; ++block) {
    uint32_t a[4];
    load_a_of_columns(a, solved, first_row, block * 16, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = block * 16 + (i >> 1) * 8 + (lane & 3) * 2;
      const float2 f = unpack_bf16(a[i]);
      const float factor = i & 1 ? betas.y : betas.x;
      if (row + (i & 1) * 8 < place.rows && first_channel + channel < shape.value_size)
        *reinterpret_cast<uint32_t*>(to + (i & 1) * eight_rows + channel) =
            pack_bf16(factor * f.x, factor * f.y);
    }
  }
}

/// Rows g and g+8 in accumulators times a factor each.
template <int Blocks>
__device__ void scale_rows(float (&x)[Blocks][4], const float2& factor) {
#pragma unroll
  for (int n = 0; n < Blocks; ++n) {
    x[n][0] *= factor.x;
    x[n][1] *= factor.x;
    x[n][2] *= factor.y;
    x[n][3] *= factor.y;
  }
}

/// Queues the copy of a TriangleTile from global memory into a square tile.
__device__ void copy_triangle(const BlockTile<kChunk>& square, const __nv_bfloat16* source) {
  constexpr int kPieces = TriangleTile::kBytes / 16;
#pragma unroll
  for (int first = 0; first < kPieces; first += kGradientThreads) {
    const int piece = first + copying_thread();
    if (piece < kPieces)
      copy_async_16(triangle_piece_in(square, piece), reinterpret_cast<const char*>(source) + piece * 16,
                    true);
  }
}

template <int KP, int VT, bool kGated, class Products>
__device__ void token_gradients(const DeltaRuleBackwardGradientsArgs& args, uint32_t base) {
  using Memory = GradientMemory<KP, VT>;
  const DeltaRuleShape& shape = args.in.shape;
  const int head = static_cast<int>(blockIdx.x % shape.num_value_heads);
  const int64_t chunk = blockIdx.x / shape.num_value_heads;
  if (chunk >= shape.chunk_offsets[shape.num_sequences]) return;
  const int64_t slot = blockIdx.x;  // of the chunk and head
  // The same in all lanes as far as the compiler can see: warps branch as a whole.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool of_query = warp < 4;
  const int first_row = (warp & 3) * 16;
  const int row = first_row + (lane >> 2);  // and row + 8
  const bool own_write_key = args.in.write_key.data != nullptr;
  const int value_tiles = delta_rule_padded_value_size(shape.value_size) / VT;

  // Where all tiles of dO and F fit, they are loaded once.
  const bool resident = Memory::kResident > 1 && value_tiles <= Memory::kResident;
  const auto scan_tile = [&](int tile) {
    const uint32_t at = resident ? tile * Memory::kValueBytes : 0;
    return GradientRows<VT>{{base + Memory::kUpstream + at}, {base + Memory::kSolved + at}};
  };
  const BlockTile<kChunk> error{base + Memory::kError};  // [VT, 64]
  const BlockTile<KP> state{base + Memory::kState};      // [VT, KP]
  const RowTile<KP> q{base + Memory::kUpstream};
  const RowTile<KP> k{base + Memory::kSolved};
  const RowTile<KP> w{own_write_key ? base + Memory::kState : k.base};
  const BlockTile<kChunk> query_weights{base + Memory::kWeights};               // dP
  const BlockTile<kChunk> key_weights{base + Memory::kWeights + kSquareBytes};  // dM
  const BlockTile<kChunk> own_weights{base + Memory::kWeights + (of_query ? 0 : kSquareBytes)};
  const uint32_t q_rstd = base + Memory::kVectors;
  const uint32_t k_rstd = q_rstd + kVectorBytes;
  const uint32_t beta = k_rstd + kVectorBytes;
  const uint32_t sums = base + Memory::kSums;  // G
  const DecayRows decay_rows{sums + kVectorBytes};
  const auto row_pair = [row](uint32_t vector) {
    return make_float2(read_shared(vector + row * 4), read_shared(vector + (row + 8) * 4));
  };

  // Of a tile's [VT, ...] matrix; no memory holds more of them than 32 bits count.
  const auto value_matrix = [&](int tile) { return static_cast<int64_t>(blockIdx.x * value_tiles + tile); };
  const auto copy_solved = [&](int tile) {
    copy_flat_async<kGradientThreads, Memory::kValueBytes>(scan_tile(tile).solved.base,
                                                           args.solved + value_matrix(tile) * VT * kChunk);
  };
  const auto copy_error = [&](int tile, uint32_t target) {
    copy_flat_async<kGradientThreads, Memory::kValueBytes>(target,
                                                           args.error + value_matrix(tile) * VT * kChunk);
  };
  const auto copy_state = [&](const __nv_bfloat16* states, int tile) {
    StateProduct<KP, VT>::copy_share(state, states + value_matrix(tile) * VT * KP, warp);
  };
  const auto arrived = [] {
    copy_async_commit();
    copy_async_wait<0>();
    Products::publish_shared();
    __syncthreads();
  };

  // What lies by chunk and head is on its way before it is known where the chunk's tokens lie.
  copy_solved(0);
  copy_error(0, error.base);
  if (value_tiles == 1) copy_state(args.states, 0);
  if constexpr (kGated) {
    // The forward's products of the same pairs lie where the weights will.
    copy_triangle(query_weights, args.prepared.pairs + slot * kDeltaRuleTriangle);
    copy_triangle(key_weights, args.prepared.key_pairs + slot * kDeltaRuleTriangle);
    copy_flat_async<kGradientThreads, kVectorBytes>(sums, args.prepared.gates + slot * (3 * kChunk));
  }
  const ChunkPlace place = place_of(shape, chunk, head);
  const auto copy_upstream = [&](int tile) {
    copy_rows_async<kGradientThreads>(scan_tile(tile).upstream,
                                      rows_at(args.d_o, place.token, head) + tile * VT, args.d_o.token_stride,
                                      place.rows, shape.value_size - tile * VT);
  };
  const int64_t key_row = place.token * shape.num_key_heads + place.key_head;
  copy_vector_async(q_rstd, args.prepared.q_rstd + key_row, shape.num_key_heads, place.rows, 0);
  copy_vector_async(k_rstd, args.prepared.k_rstd + key_row, shape.num_key_heads, place.rows, 64);
  copy_vector_async(beta, args.in.beta + place.token * shape.num_value_heads + head, shape.num_value_heads,
                    place.rows, 128);

  // Products of dO and F with E give the weights (eq. 8) and, on the diagonal, the gradient of beta.
  {
    float products[kChunk / 8][4] = {};
    // With all of dO and F, all of E: its other tiles where the states will lie.
    const auto error_tile = [&](int tile) {
      const bool other = resident && tile > 0;
      return BlockTile<kChunk>{base +
                               (other ? Memory::kState + (tile - 1) * Memory::kValueBytes : Memory::kError)};
    };
    for (int tile = 0; tile < value_tiles; ++tile) {
      if (tile == 0 || !resident) {
        if (tile > 0) __syncthreads();
        for (int part = tile; part < (resident ? value_tiles : tile + 1); ++part) {
          copy_upstream(part);
          if (part == 0) continue;
          copy_solved(part);
          copy_error(part, error_tile(part).base);
        }
        arrived();
      }
      Products::begin(products);
      Products::template add_times_error<VT>(products, scan_tile(tile), error_tile(tile), warp, lane);
      Products::end();
      Products::template wait<0>(products);
    }
    if (resident && value_tiles > 1) {
      __syncthreads();
      copy_state(args.states, 0);
    }
    const float2 betas = row_pair(beta);
    const float2 factors = row_pair(of_query ? q_rstd : k_rstd);
    const float2 weight =
        of_query ? make_float2(args.in.scale, args.in.scale) : make_float2(-betas.x, -betas.y);
    const float2 row_sums = kGated ? row_pair(sums) : make_float2(0.0f, 0.0f);
    // In a block on the diagonal its number in row g is column 2t + i for this i, if one of the lane's.
    const int diagonal_column = (lane >> 2) - (lane & 3) * 2;
    const int last_column = diagonal_column - (of_query ? 0 : 1);  // that counts
    float2 d_beta = make_float2(0.0f, 0.0f);                       // of rows g and g+8
    PairSums pair_sums;
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      const uint32_t target = own_weights.piece(row, n * 8) + (lane & 3) * 4;
      constexpr uint32_t kEightRows = 8 * 16 * (kChunk / 8);
      if (n / 2 <= (warp & 3)) {
        const bool diagonal = n / 2 == (warp & 3);
        const float2 column_beta = column_pair(beta, n, lane);
        const float2 column_sums = kGated ? column_pair(sums, n, lane) : make_float2(0.0f, 0.0f);
        const float2 writing = own_write_key ? make_float2(1.0f, 1.0f) : column_pair(k_rstd, n, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float factor = half == 0 ? factors.x : factors.y;
          const float row_weight = half == 0 ? weight.x : weight.y;
          float pair[2] = {products[n][2 * half] * (row_weight * column_beta.x),
                           products[n][2 * half + 1] * (row_weight * column_beta.y)};
          const bool own_block = (n & 1) == half;  // else all of the eight columns are before or after
          bool on_diagonal[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            on_diagonal[i] = own_block && diagonal && diagonal_column == i;
            if (half == 0)
              d_beta.x = on_diagonal[i] ? products[n][i] : d_beta.x;
            else
              d_beta.y = on_diagonal[i] ? products[n][2 + i] : d_beta.y;
            pair[i] = diagonal && (own_block ? i > last_column : half < (n & 1)) ? 0.0f : pair[i];
          }
          if constexpr (kGated) {
            float2 of_pair = unpack_bf16(read_shared_bits(target + half * kEightRows));
            if (of_query)
              of_pair = make_float2(of_pair.x * (factor * writing.x), of_pair.y * (factor * writing.y));
            // A token with itself is no decay's.
            pair_sums.add(n, half, on_diagonal[0] ? 0.0f : pair[0] * of_pair.x,
                          on_diagonal[1] ? 0.0f : pair[1] * of_pair.y);
            const float row_sum = half == 0 ? row_sums.x : row_sums.y;
            // Beyond the diagonal, where the pair is zero, the decay is not to be infinite.
            pair[0] *= exp2_approx(fminf(row_sum - column_sums.x, 0.0f) * kLog2E);
            pair[1] *= exp2_approx(fminf(row_sum - column_sums.y, 0.0f) * kLog2E);
          }
          write_shared_bits(target + half * kEightRows,
                            pack_bf16(pair[0] * (factor * writing.x), pair[1] * (factor * writing.y)));
        }
      } else {
        write_shared_bits(target, 0u);
        write_shared_bits(target + kEightRows, 0u);
      }
    }
    if (!of_query && (diagonal_column == 0 || diagonal_column == 1)) {
      float* to = args.d_beta + (place.token + row) * shape.num_value_heads + head;
      if (row < place.rows) to[0] = d_beta.x;
      if (row + 8 < place.rows) to[8 * shape.num_value_heads] = d_beta.y;
    }
    if constexpr (kGated) pair_sums.store(decay_rows.at(warp, 0), row, lane);
  }

  // What reads the state: dQ = scale dO S^T, dK = -beta F S^T; with it dV = beta F.
  float d_rows[KP / 8][4] = {};
  float of_states = 0.0f;  // this lane's share of the sum of the state's products with its gradient
  for (int tile = 0; tile < value_tiles; ++tile) {
    if (value_tiles > 1) {
      if (!resident || tile > 0) {
        __syncthreads();
        if (!resident) {
          copy_upstream(tile);
          copy_solved(tile);
        }
        copy_state(args.states, tile);
      }
      arrived();
    }
    const GradientRows<VT> scan = scan_tile(tile);
    Products::begin(d_rows);
    Products::template add_times_state<KP, VT>(d_rows, scan, state, warp, lane);
    Products::end();
    // The lane read anew, so that addresses are not kept around the loop.
    if (!of_query)
      store_d_v<VT>(args, scan.solved, row_pair(beta), place, first_row, tile * VT, copying_thread() % 32);
    if (kGated && tile + 1 < value_tiles)
      of_states += StateProduct<KP, VT>::sum(state, args.d_states + value_matrix(tile) * VT * KP, warp, lane);
    Products::template wait<0>(d_rows);
  }
  __syncthreads();  // dO, F and the state are done with
  copy_rows_async<kGradientThreads>(q, rows_at(args.in.q, place.token, place.key_head),
                                    args.in.q.token_stride, place.rows, shape.key_size);
  copy_rows_async<kGradientThreads>(k, rows_at(args.in.k, place.token, place.key_head),
                                    args.in.k.token_stride, place.rows, shape.key_size);
  StateProduct<KP, VT> last_state;
  if constexpr (kGated) {
    decay_rows.add_pairs();
    decay_rows.keep(place);
    last_state.hold(state, warp);
  }
  copy_state(args.d_states, value_tiles - 1);
  if (resident && value_tiles > 1) copy_error(value_tiles - 1, error.base);
  arrived();
  const RowTile<KP> own = of_query ? q : k;
  if constexpr (kGated) of_states += last_state.sum(state, warp, lane);

  {
    const float2 betas = row_pair(beta);
    const float2 factors = row_pair(of_query ? q_rstd : k_rstd);
    float2 weight = of_query ? make_float2(args.in.scale * factors.x, args.in.scale * factors.y)
                             : make_float2(-betas.x * factors.x, -betas.y * factors.y);
    if constexpr (kGated) {
      const float2 row_sums = row_pair(sums);
      weight = make_float2(weight.x * __expf(row_sums.x), weight.y * __expf(row_sums.y));
    }
    scale_rows(d_rows, weight);
  }

  // The gradient of the write key, rows of tokens again, half of the channels a warp: beta E times the
  // gradient of the state, and the weights' columns times q and k.
  const int first_column = (warp >> 2) * (KP / 2);
  float d_write[KP / 16][4] = {};
  for (int tile = value_tiles - 1; tile >= 0; --tile) {
    if (tile < value_tiles - 1) {
      __syncthreads();
      copy_error(tile, error.base);
      copy_state(args.d_states, tile);
      arrived();
    }
    Products::begin(d_write);
    Products::template add_error_times_state<KP, VT>(d_write, error, state, first_column, warp, lane);
    Products::end();
    if (kGated && tile == 0) {
      const float2 dots = row_dots(d_rows, own, first_row, 0);
      if ((lane & 3) == 0) {
        const int which = DecayRows::kReading + (of_query ? 0 : 1);
        write_shared(decay_rows.at(which, row), dots.x);
        write_shared(decay_rows.at(which, row + 8), dots.y);
      }
    }
    Products::template wait<0>(d_write);
  }
  if (own_write_key) {
    const ChunkPlace last_place = kGated ? decay_rows.kept(place) : place;
    __syncthreads();  // the gradient of the state is done with, its place is w's
    copy_rows_async<kGradientThreads>(w, rows_at(args.in.write_key, last_place.token, last_place.head),
                                      args.in.write_key.token_stride, last_place.rows, shape.key_size);
    arrived();
  }
  {
    float2 written = row_pair(beta);
    if (!own_write_key) {
      const float2 factor = row_pair(k_rstd);
      written = make_float2(written.x * factor.x, written.y * factor.y);
    }
    if constexpr (kGated) {
      const float last = read_shared(sums + (kChunk - 1) * 4);
      const float2 row_sums = row_pair(sums);
      written = make_float2(written.x * __expf(last - row_sums.x), written.y * __expf(last - row_sums.y));
    }
    scale_rows(d_write, written);
  }
  if constexpr (kGated) {
    // What every token wrote for the end of the chunk, half of the channels a warp, and what the chunk leaves
    // of the state.
    const float2 dots = row_dots(d_write, w, first_row, first_column);
    if ((lane & 3) == 0) {
      const int which = DecayRows::kWriting + (warp >> 2);
      write_shared(decay_rows.at(which, row), dots.x);
      write_shared(decay_rows.at(which, row + 8), dots.y);
    }
    of_states = warp_sum(of_states);
    if (lane == 0) write_shared(decay_rows.at(DecayRows::kStates, warp), of_states);
  }
  Products::begin(d_write);
  Products::template add_weighted_transposed<KP>(d_write, query_weights, q, first_column, warp, lane);
  Products::template add_weighted_transposed<KP>(d_write, key_weights, k, first_column, warp, lane);
  Products::end();
  Products::template wait<0>(d_write);

  // It leaves by way of shared memory: in bf16 beside w, or in fp32 to the warps that hold dK.
  const RowTile<KP> d_write_rows{base + Memory::kState + Memory::kKeyBytes};
  // A pitch of KP + 8 floats would not fit, so rows are rotated against conflicts.
  const auto staged = [&](int at, int column) {
    return base + Memory::kState + (at * KP + ((column + at * 8) & (KP - 1))) * 4;
  };
  const int pair = copying_thread() % 4 * 2;  // this lane's first column of a block
  if (own_write_key) {
#pragma unroll
    for (int n = 0; n < KP / 16; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        write_shared_bits(d_write_rows.piece(row + half * 8, first_column + n * 8) + pair * 2,
                          pack_bf16(d_write[n][2 * half], d_write[n][2 * half + 1]));
    }
  } else {
    __syncthreads();  // the gradient of the state is done with
#pragma unroll
    for (int n = 0; n < KP / 16; ++n) {
      const int column = first_column + n * 8 + pair;
      write_shared_2(staged(row, column), d_write[n][0], d_write[n][1]);
      write_shared_2(staged(row + 8, column), d_write[n][2], d_write[n][3]);
    }
  }
  {
    uint32_t fragments[kChunk / 16][4];
#pragma unroll
    for (int block = 0; block < kChunk / 16; ++block)
      load_a_of_rows(fragments[block], own_weights, first_row, block * 16, lane);
    Products::begin(d_rows);
    Products::template add_weighted<KP>(d_rows, fragments, w, warp, lane);
    Products::end();
    Products::template wait<0>(d_rows);
  }
  __syncthreads();  // q and k as operands are done with
  const ChunkPlace last_place = kGated ? decay_rows.kept(place) : place;
  if (kGated && warp == 0) {
    const float2 out = decay_rows.gradient(__expf(read_shared(sums + (kChunk - 1) * 4)), lane);
    float* to = args.d_log_decay + (last_place.token + 2 * lane) * shape.num_value_heads + last_place.head;
    if (2 * lane < last_place.rows) to[0] = out.x;
    if (2 * lane + 1 < last_place.rows) to[shape.num_value_heads] = out.y;
  }
  if (own_write_key) {
    if (of_query)
      store_rows(args.d_write_key, d_write_rows, first_row, last_place, shape.num_value_heads, shape.key_size,
                 lane);
  } else if (!of_query) {
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
  through_norm<KP>(d_rows, own, row_pair(of_query ? q_rstd : k_rstd), args.normalize, first_row);
  store_rows(of_query ? args.d_q : args.d_k, own, first_row, last_place, shape.num_value_heads,
             shape.key_size, lane);
}

template <int KP, int VT, bool kGated, class Products>
__global__ void __launch_bounds__(kGradientThreads, KP > 128 ? 1 : 2)
    delta_rule_backward_gradients_kernel(const __grid_constant__ DeltaRuleBackwardGradientsArgs args) {
  if constexpr (Products::kAvailable) token_gradients<KP, VT, kGated, Products>(args, dynamic_shared());
}

template <int KP, int VT, bool kGated>
void launch_gradients(const DeltaRuleBackwardGradientsArgs& args, CUstream_st* stream) {
  auto* kernel = delta_rule_backward_gradients_kernel<KP, VT, kGated, WarpGradients>;
  if constexpr (KP == 128)
    if (has_warpgroups() && !args.in.portable)
      kernel = delta_rule_backward_gradients_kernel<KP, VT, kGated, WarpgroupGradients>;
  const int64_t blocks = args.in.shape.num_chunks * args.in.shape.num_value_heads;
  launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), kGradientThreads,
                GradientMemory<KP, VT>::bytes(kGated), args, stream);
}

}  // namespace

bool delta_rule_takes_wide_keys() { return GradientMemory<256, 128>::bytes(true) <= shared_memory_limit(); }

void launch(const DeltaRuleBackwardGradientsArgs& args, CUstream_st* stream) {
  if (args.in.shape.num_chunks * args.in.shape.num_value_heads == 0) return;
  by_any_key_size(args.in.shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    const bool gated = args.in.log_decay != nullptr;
    if (delta_rule_padded_value_size(args.in.shape.value_size) == 64)
      gated ? launch_gradients<KP, 64, true>(args, stream) : launch_gradients<KP, 64, false>(args, stream);
    else
      gated ? launch_gradients<KP, 128, true>(args, stream) : launch_gradients<KP, 128, false>(args, stream);
  });
}

}  // namespace osdn::kernels
