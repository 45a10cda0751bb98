// First pass of the delta rule with a decay a key channel (docs/ops/delta_rule.md, "Decay by channel"): what
// of a chunk does not depend on the state, one block of four warps a (chunk, value head), 16 tokens a warp.
//
// Every factor is a product of decays between two tokens, never the inverse of one. Within 16 tokens blocks
// of 1, 2, 4 and 8 are paired, as in a parallel scan: rows of a second half carry the decays since its
// start, columns of the first half those until its end, and the products of the levels are picked by the
// highest bit in which row and column differ. Between the blocks of 16, rows carry the decays since the start
// of theirs, columns those until the end of theirs, and rows are decayed further from block to block.
#include "kernels/delta_rule_channel.h"
#include "kernels/detail/delta_rule_channel.cuh"
#include "kernels/detail/delta_rule_inverse.cuh"

namespace osdn::kernels {
namespace {

constexpr float kChannelNormEpsilon = 1e-6f;  // inside the root
constexpr int kLevels = 3;                    // of blocks of 1, 2 and 4 tokens, within eight

template <int KP>
struct ChannelPrepareMemory {
  static constexpr int kTileBytes = kChunk * KP * 2;
  static constexpr int kQuery = 0;
  static constexpr int kKey = kTileBytes;
  static constexpr int kColumns = 2 * kTileBytes;  // write keys, decayed to the end of their 16 tokens
  static constexpr int kSystem = 3 * kTileBytes;   // the write key as given, later M
  static constexpr int kVectors =
      kSystem + (kTileBytes > System::kBytes ? kTileBytes : System::kBytes);  // beta, k_rstd, a float a warp
  static constexpr int kTotals = kVectors + 3 * kVectorBytes;                 // [4, KP] decays of 16 tokens
  static constexpr int kBefore = kTotals + kSubBlocks * KP * 4;               // of all sub-blocks before one
  static constexpr int kAfter = kBefore + kSubBlocks * KP * 4;                // and after it
  static constexpr int kBytes = kAfter + kSubBlocks * KP * 4;
};

/// Factors of a lane's eight numbers: tokens g and g + 8 (`half`), channels 2t and 2t + 1 of two blocks of
/// eight (`piece`). They start as the decays themselves and `join` doubles the blocks of tokens.
struct BlockFactors {
  float prefix[2][2][2];  // decays since the start of the token's block, its own included
  float suffix[2][2][2];  // after the token until the end of its block
  float total[2][2][2];

  template <typename Visit>
  __device__ void for_each(const Visit& visit) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int piece = 0; piece < 2; ++piece)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          visit(prefix[half][piece][i], suffix[half][piece][i], total[half][piece][i]);
  }

  __device__ explicit BlockFactors(const float2 (&log_decays)[2][2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int piece = 0; piece < 2; ++piece) {
        total[half][piece][0] = exp2_approx(log_decays[half][piece].x * kLog2E);
        total[half][piece][1] = exp2_approx(log_decays[half][piece].y * kLog2E);
      }
    for_each([](float& before, float& after, float& all) {
      before = all;
      after = 1.0f;
    });
  }

  /// Blocks of 1 << level tokens to pairs of them.
  __device__ void join(int level, int lane) {
    const bool second = ((lane >> (2 + level)) & 1) != 0;
    for_each([&](float& before, float& after, float& all) {
      const float other = __shfl_xor_sync(0xffffffffu, all, 4 << level);
      if (second)
        before *= other;
      else
        after *= other;
      all *= other;
    });
  }

  /// The two blocks of eight tokens to one.
  __device__ void join_halves() {
#pragma unroll
    for (int piece = 0; piece < 2; ++piece)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        prefix[1][piece][i] *= total[0][piece][i];
        suffix[0][piece][i] *= total[1][piece][i];
        total[0][piece][i] *= total[1][piece][i];
      }
  }
};

/// Register of an A fragment with token g + 8 half and block `piece` of channels.
__device__ constexpr int word_of(int half, int piece) { return 2 * piece + half; }

/// Eight tokens of q over the same of k as an A fragment, times the prefixes, rounded.
__device__ inline void stacked_rows(uint32_t (&a)[4], const uint32_t (&q)[4], const uint32_t (&k)[4],
                                    const BlockFactors& factors, int half) {
#pragma unroll
  for (int piece = 0; piece < 2; ++piece) {
    const float(&prefix)[2] = factors.prefix[half][piece];
    const uint32_t rounded = pack_bf16(prefix[0], prefix[1]);
    a[2 * piece] = multiply_pairs(q[word_of(half, piece)], rounded);
    a[2 * piece + 1] = multiply_pairs(k[word_of(half, piece)], rounded);
  }
}

/// Eight tokens of w as a B fragment, times the suffixes, rounded.
__device__ inline void columns_of(uint32_t (&b)[2], const uint32_t (&w)[4], const BlockFactors& factors,
                                  int half) {
#pragma unroll
  for (int piece = 0; piece < 2; ++piece) {
    const float(&suffix)[2] = factors.suffix[half][piece];
    b[piece] = multiply_pairs(w[word_of(half, piece)], pack_bf16(suffix[0], suffix[1]));
  }
}

/// The products of 16 tokens with themselves. Accumulators hold rows of q (g) over rows of k (g).
struct DiagonalProducts {
  float within[kLevels][2][4] = {};  // by level and block of eight
  float across[4] = {};              // second eight rows, first eight columns

  /// Of the pair of columns 2t, 2t + 1 of eight, the one with index i: product of row g in the same eight.
  __device__ float pick(int half, bool of_key, int i, int lane) const {
    const int differing = (lane >> 2) ^ ((lane & 3) * 2 + i);
    const int at = (of_key ? 2 : 0) + i;
    return differing >= 4 ? within[2][half][at] : differing >= 2 ? within[1][half][at] : within[0][half][at];
  }
};

template <int KP>
__global__ void __launch_bounds__(kPrepareThreads, 3)
    delta_rule_channel_prepare_kernel(const __grid_constant__ DeltaRuleChannelPrepareArgs args) {
  using Memory = ChannelPrepareMemory<KP>;
  const DeltaRuleShape& shape = args.in.shape;
  const int head = static_cast<int>(blockIdx.x % shape.num_value_heads);
  const ChunkPlace place = place_of(shape, blockIdx.x / shape.num_value_heads, head);
  const int64_t slot = place.slot(shape);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int first_row = warp * kSubBlock;
  const bool own_write_key = args.in.write_key.data != nullptr;

  const uint32_t base = dynamic_shared();
  const RowTile<KP> q{base + Memory::kQuery};
  const RowTile<KP> k{base + Memory::kKey};
  const RowTile<KP> columns{base + Memory::kColumns};
  const RowTile<KP> w{own_write_key ? base + Memory::kSystem : k.base};
  const System system{base + Memory::kSystem};
  const uint32_t beta = base + Memory::kVectors;
  const uint32_t k_rstd = beta + kVectorBytes;
  const uint32_t by_warp = beta + 2 * kVectorBytes;
  const uint32_t totals = base + Memory::kTotals;
  const uint32_t before = base + Memory::kBefore;
  const uint32_t after = base + Memory::kAfter;

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
  const auto load_log_decays = [&](float2(&out)[2][2], int block) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int piece = 0; piece < 2; ++piece)
        out[half][piece] = log_decay_pair(args.log_decay, shape, place, first_row + half * 8 + g,
                                          block * 16 + piece * 8 + t * 2);
  };
  float2 log_decays[2][2];
  load_log_decays(log_decays, 0);
  copy_async_wait<0>();
  __syncthreads();

  DiagonalProducts diagonal;
  float self[2] = {};     // <q, w> of tokens g and g + 8, this lane's channels
  float q_norms[2] = {};  // squares, then reciprocal norms
  float k_norms[2] = {};
  float least = 1.0f;  // of the decays of eight tokens
#pragma unroll 1
  for (int block = 0; block < KP / 16; ++block) {
    uint32_t rows_q[4];
    uint32_t rows_k[4];
    uint32_t rows_w[4];
    load_a_of_rows(rows_q, q, first_row, block * 16, lane);
    load_a_of_rows(rows_k, k, first_row, block * 16, lane);
    load_a_of_rows(rows_w, w, first_row, block * 16, lane);
    BlockFactors factors(log_decays);
    if (block + 1 < KP / 16) load_log_decays(log_decays, block + 1);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int piece = 0; piece < 2; ++piece) {
        const float2 x = unpack_bf16(rows_q[word_of(half, piece)]);
        const float2 y = unpack_bf16(rows_k[word_of(half, piece)]);
        const float2 z = unpack_bf16(rows_w[word_of(half, piece)]);
        self[half] += x.x * z.x + x.y * z.y;
        q_norms[half] += x.x * x.x + x.y * x.y;
        k_norms[half] += y.x * y.x + y.y * y.y;
      }
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[4];
        stacked_rows(a, rows_q, rows_k, factors, half);
        uint32_t b[2] = {rows_w[word_of(half, 0)], rows_w[word_of(half, 1)]};
        if (level > 0) columns_of(b, rows_w, factors, half);  // blocks of one token have no suffix
        mma_bf16(diagonal.within[level][half], a, b[0], b[1]);
      }
      factors.join(level, lane);
    }
    {
      uint32_t a[4];
      uint32_t b[2];
      stacked_rows(a, rows_q, rows_k, factors, 1);
      columns_of(b, rows_w, factors, 0);
      mma_bf16(diagonal.across, a, b[0], b[1]);
    }
    factors.for_each([&](float&, float&, float& all) { least = fminf(least, all); });
    factors.join_halves();
    __syncwarp();  // all lanes have read these columns
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      const int channel = block * 16 + piece * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + half * 8 + g;
        const int word = word_of(half, piece);
        const float(&prefix)[2] = factors.prefix[half][piece];
        const float(&suffix)[2] = factors.suffix[half][piece];
        write_shared_bits(q.piece(row, channel) + t * 4, scaled_pair(rows_q[word], prefix[0], prefix[1]));
        write_shared_bits(k.piece(row, channel) + t * 4, scaled_pair(rows_k[word], prefix[0], prefix[1]));
        write_shared_bits(columns.piece(row, channel) + t * 4,
                          scaled_pair(rows_w[word], suffix[0], suffix[1]));
      }
      if (g == 0)
        write_shared_2(totals + (warp * KP + channel + t * 2) * 4, factors.total[0][piece][0],
                       factors.total[0][piece][1]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      self[half] += __shfl_xor_sync(0xffffffffu, self[half], distance);
      q_norms[half] += __shfl_xor_sync(0xffffffffu, q_norms[half], distance);
      k_norms[half] += __shfl_xor_sync(0xffffffffu, k_norms[half], distance);
    }
    q_norms[half] = args.normalize ? rsqrtf(q_norms[half] + kChannelNormEpsilon) : 1.0f;
    k_norms[half] = args.normalize ? rsqrtf(k_norms[half] + kChannelNormEpsilon) : 1.0f;
    const int row = first_row + half * 8 + g;
    if (t == 0) write_shared(k_rstd + row * 4, k_norms[half]);
    if (t == 0 && row < place.rows) {
      const int64_t at = (place.token + row) * shape.num_value_heads + head;
      args.out.q_rstd[at] = q_norms[half];
      args.out.k_rstd[at] = k_norms[half];
    }
  }
  const bool mild = __all_sync(0xffffffffu, least >= exp2_approx(-kLargestAnchoredExponent * kLog2E)) != 0;
  if (lane == 0) write_shared(by_warp + warp * 4, mild ? 1.0f : 0.0f);
  __syncthreads();

  if (threadIdx.x == 0) {
    int bits = 0;
#pragma unroll
    for (int i = 0; i < kSubBlocks; ++i) bits |= read_shared(by_warp + i * 4) != 0.0f ? 1 << i : 0;
    args.anchored[slot] = bits;
  }
  for (int channel = static_cast<int>(threadIdx.x); channel < KP; channel += kPrepareThreads) {
    float product = 1.0f;
#pragma unroll
    for (int i = 0; i < kSubBlocks; ++i) {
      write_shared(before + (i * KP + channel) * 4, product);
      product *= read_shared(totals + (i * KP + channel) * 4);
    }
    args.chunk_decay[slot * KP + channel] = product;
    product = 1.0f;
#pragma unroll
    for (int i = kSubBlocks - 1; i >= 0; --i) {
      write_shared(after + (i * KP + channel) * 4, product);
      product *= read_shared(totals + (i * KP + channel) * 4);
    }
  }
  auto* pairs = reinterpret_cast<uint32_t*>(args.out.pairs + slot * kDeltaRuleTriangle);
  // Products of rows 8 half + g of this sub-block with columns 8 eight + 2t, + 1 of sub-block `block`.
  const auto store_products = [&](int block, int eight, int half, float2 of_query, float2 of_key) {
    const float2 writing =
        own_write_key ? make_float2(1.0f, 1.0f) : column_pair(k_rstd, block * 2 + eight, lane);
    pairs[TriangleTile::block(warp, block) * 128 + half * 64 + eight * 32 + lane] =
        pack_bf16(of_query.x * writing.x, of_query.y * writing.y);
    write_shared_2(system.address(first_row + half * 8 + g, block * kSubBlock + eight * 8 + t * 2),
                   of_key.x * (k_norms[half] * writing.x), of_key.y * (k_norms[half] * writing.y));
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float of_query[2];
    float of_key[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = t * 2 + i;
      of_query[i] = column < g ? diagonal.pick(half, false, i, lane) : column == g ? self[half] : 0.0f;
      of_key[i] = column < g ? diagonal.pick(half, true, i, lane) : 0.0f;
    }
    store_products(warp, half, half, make_float2(of_query[0], of_query[1]),
                   make_float2(of_key[0], of_key[1]));
  }
  store_products(warp, 0, 1, make_float2(diagonal.across[0], diagonal.across[1]),
                 make_float2(diagonal.across[2], diagonal.across[3]));
  store_products(warp, 1, 0, make_float2(0.0f, 0.0f), make_float2(0.0f, 0.0f));
  for (int eight = 2 * (warp + 1); eight < kChunk / 8; ++eight)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      write_shared_2(system.address(first_row + half * 8 + g, eight * 8 + t * 2), 0.0f, 0.0f);

  for (int block = warp - 1; block >= 0; --block) {
    float of_query[2][4] = {};
    float of_key[2][4] = {};
#pragma unroll 2
    for (int i = 0; i < KP / 16; ++i) {
      uint32_t rows_q[4];
      uint32_t rows_k[4];
      uint32_t b[4];
      load_a_of_rows(rows_q, q, first_row, i * 16, lane);
      load_a_of_rows(rows_k, k, first_row, i * 16, lane);
      load_b_of_rows(b, columns, block * kSubBlock, i * 16, lane);
      if (block + 1 < warp) {
#pragma unroll
        for (int piece = 0; piece < 2; ++piece) {
          const int channel = i * 16 + piece * 8 + t * 2;
          float2 between = read_shared_2(totals + ((block + 1) * KP + channel) * 4);
          if (block + 2 < warp) {
            const float2 next = read_shared_2(totals + ((block + 2) * KP + channel) * 4);
            between = make_float2(between.x * next.x, between.y * next.y);
          }
          const uint32_t rounded = pack_bf16(between.x, between.y);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int word = word_of(half, piece);
            rows_q[word] = multiply_pairs(rows_q[word], rounded);
            rows_k[word] = multiply_pairs(rows_k[word], rounded);
          }
        }
      }
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        mma_bf16(of_query[eight], rows_q, b[2 * eight], b[2 * eight + 1]);
        mma_bf16(of_key[eight], rows_k, b[2 * eight], b[2 * eight + 1]);
      }
    }
#pragma unroll
    for (int eight = 0; eight < 2; ++eight)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_products(block, eight, half,
                       make_float2(of_query[eight][2 * half], of_query[eight][2 * half + 1]),
                       make_float2(of_key[eight][2 * half], of_key[eight][2 * half + 1]));
  }

  __syncthreads();  // all have read the columns; M and the products of decays are there
  {
    // Sixteen bytes of a row a lane, the same channels in every round.
    constexpr int kPieces = KP / 8;
    constexpr int kRowsAtOnce = 32 / kPieces;
    const int channel = lane % kPieces * 8;
    const int first = first_row + lane / kPieces;
    const int64_t stride = static_cast<int64_t>(shape.num_value_heads) * shape.key_size;
    const int64_t at = (place.token + first) * stride + head * shape.key_size + channel;
    const int limit = channel < shape.key_size ? place.rows : 0;
    const auto store = [&](__nv_bfloat16* target, const RowTile<KP>& tile, uint32_t table, bool by_row) {
      const uint32_t address = table + (warp * KP + channel) * 4;
      const float4 low = read_shared_4(address);
      const float4 high = read_shared_4(address + 16);
      target += at;
#pragma unroll
      for (int i = 0; i < kSubBlock; i += kRowsAtOnce) {
        const float factor = by_row ? read_shared(k_rstd + (first + i) * 4) : 1.0f;
        uint4 piece = read_shared_piece(tile.piece(first + i, channel));
        piece.x = scaled_pair(piece.x, low.x * factor, low.y * factor);
        piece.y = scaled_pair(piece.y, low.z * factor, low.w * factor);
        piece.z = scaled_pair(piece.z, high.x * factor, high.y * factor);
        piece.w = scaled_pair(piece.w, high.z * factor, high.w * factor);
        if (first + i < limit) *reinterpret_cast<uint4*>(target + i * stride) = piece;
      }
    };
    store(args.q, q, before, false);
    store(args.k, k, before, false);
    if (own_write_key)
      store(args.write_key, columns, after, false);
    else
      store(args.write_key, columns, after, true);
  }

  solve(system, beta, warp, lane);
  store_inverse(system, args.out, slot, by_warp);
}

}  // namespace

void launch(const DeltaRuleChannelPrepareArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  const int64_t blocks = shape.num_chunks * shape.num_value_heads;
  if (blocks == 0) return;
  by_key_size(shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    launch_kernel(delta_rule_channel_prepare_kernel<KP>, dim3(static_cast<unsigned>(blocks)), kPrepareThreads,
                  ChannelPrepareMemory<KP>::kBytes, args, stream);
  });
}

}  // namespace osdn::kernels
