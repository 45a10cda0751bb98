// First pass of the delta rule with a decay a key channel (docs/ops/delta_rule.md, "Decay by channel"): what
// of a chunk does not depend on the state, one block of eight warps a (chunk, value head), 16 tokens and 64
// channels a warp.
//
// Rows of q and k carry the decays since the start of their 16 tokens, columns of the write key the inverse
// of those. For the rows of later blocks columns are multiplied by what decays until the end of theirs and
// between. From the first token on at which some channel has decayed by more than the range of bf16 allows,
// columns carry the decays until the end, and their pairs within the 16 tokens are added one by one. So no
// output depends on the decay of a later token, in bits.
#include "kernels/common/early_start.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/delta_rule_channel.h"
#include "kernels/detail/delta_rule_channel_prepare.cuh"

namespace osdn::kernels {
namespace {

/// The products of a chunk's pairs: M to the system in shared memory, those with q to global memory.
template <int KP>
struct ChannelPairs : ChannelChunk<KP> {
  using Chunk = ChannelChunk<KP>;
  using Memory = typename Chunk::Memory;
  using Chunk::args, Chunk::shape, Chunk::base, Chunk::own_write_key;
  using Chunk::kBlockBytes, Chunk::kPanelBytes, Chunk::kRows;
  using Chunk::own_lane, Chunk::own_warp, Chunk::own_block, Chunk::own_half, Chunk::step_of;

  __device__ ChannelPairs(const DeltaRuleChannelPrepareArgs& given, uint32_t memory) : Chunk(given, memory) {}

  // `ldmatrix` addresses of fragments for the first 16 tokens of the tile at `base`.
  __device__ uint32_t a_address() const {
    const int lane = own_lane();
    return this->q().piece(((lane >> 3) & 1) * 8 + (lane & 7), (lane >> 4) * 8);
  }
  __device__ uint32_t b_address() const {
    const int lane = own_lane();
    return this->q().piece((lane >> 4) * 8 + (lane & 7), ((lane >> 3) & 1) * 8);
  }
  /// Products of the warp's tokens with themselves, rows of q or of k, in accumulators of columns 0 .. 7 and
  /// 8 .. 15.
  __device__ void multiply_within(float (&products)[2][4]) const {
    const int block = own_block();
    const uint32_t a = a_address() + block * kBlockBytes + own_half() * Memory::kTileBytes;
    const uint32_t b = b_address() + block * kBlockBytes + Memory::kColumns;
#pragma unroll
    for (int panel = 0; panel < KP / 64; ++panel)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t rows[4];
        uint32_t column[4];
        load_blocks(rows, step_of(a, i) + panel * kPanelBytes);
        load_blocks(column, step_of(b, i) + panel * kPanelBytes);
        mma_bf16(products[0], rows, column[0], column[1]);
        mma_bf16(products[1], rows, column[2], column[3]);
      }
  }

  /// The pairs with columns from `first_column` on of the warp's tokens, one by one, from global memory; a
  /// lane four channels of all.
  template <typename G>
  __device__ void add_strong_pairs(float (&products)[2][4], int first_column) const {
    const int lane = own_lane();
    const int block = own_block();
    const int half = own_half();
    const ChunkPlace place = this->place_again();
    const int first_channel = lane * 4;
    const int first_token = block * kSubBlock;
    const auto pair = [&](const DeltaRuleRows& rows, int head, int row, int of_channel) {
      if (row >= place.rows || of_channel >= shape.key_size) return make_float2(0.0f, 0.0f);
      return unpack_bf16(
          __ldg(reinterpret_cast<const uint32_t*>(rows_at(rows, place.token + row, head) + of_channel)));
    };
    const DeltaRuleRows& rows = half == 0 ? args.in.q : args.in.k;
#pragma unroll 1
    for (int s = first_column; s < kSubBlock - 1; ++s) {
      float2 decayed[2];  // the write key of token s, as row r finds it
#pragma unroll
      for (int i = 0; i < 2; ++i)
        decayed[i] = own_write_key
                         ? pair(args.in.write_key, place.head, first_token + s, first_channel + 2 * i)
                         : pair(args.in.k, place.key_head, first_token + s, first_channel + 2 * i);
#pragma unroll 1
      for (int r = s + 1; r < kSubBlock; ++r) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 log = log_decay_pair(static_cast<const G*>(args.log_decay), shape, place,
                                            first_token + r, first_channel + 2 * i);
          const float2 x = pair(rows, place.key_head, first_token + r, first_channel + 2 * i);
          decayed[i].x *= exp2_approx(log.x * kLog2E);
          decayed[i].y *= exp2_approx(log.y * kLog2E);
          sum += x.x * decayed[i].x + x.y * decayed[i].y;
        }
        sum = warp_sum(sum);
        if (lane != (r & 7) * 4 + ((s & 7) >> 1)) continue;
#pragma unroll
        for (int eight = 0; eight < 2; ++eight)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            // Selected, not indexed: so the sums stay in registers.
            const bool here = eight == (s >> 3) && i == (r >> 3) * 2 + (s & 1);
            products[eight][i] = here ? sum : products[eight][i];
          }
      }
    }
  }

  /// Factors of the write key of columns 8 eight + 2t, + 1 of a sub-block, times `scale`.
  __device__ float2 writing(int of_block, int eight, float scale) const {
    if (own_write_key) return make_float2(scale, scale);
    const float2 norms = column_pair(this->k_rstd(), of_block * 2 + eight, own_lane());
    return make_float2(norms.x * scale, norms.y * scale);
  }
  /// Stores products(eight, upper) of rows 8 upper + g of sub-block `row_block` with those columns: of q to
  /// global memory.
  template <class Products>
  __device__ void store_query(int row_block, int of_block, const Products& products) const {
    auto* pairs = reinterpret_cast<uint32_t*>(args.out.pairs + this->slot() * kDeltaRuleTriangle) +
                  TriangleTile::block(row_block, of_block) * 128 + own_lane();
    for_each_pair([&](int eight, int upper) {
      const float2 product = products(eight, upper);
      pairs[upper * 64 + eight * 32] = pack_bf16(product.x, product.y);
    });
  }
  /// Of k to the system.
  template <class Products>
  __device__ void store_key(int row_block, int of_block, const Products& products) const {
    const int row = row_block * kSubBlock + (own_lane() >> 2);
    const float norms[2] = {read_shared(this->k_rstd() + row * 4),
                            read_shared(this->k_rstd() + row * 4 + 32)};
    const uint32_t own = this->system().address(row, of_block * kSubBlock + (own_lane() & 3) * 2);
    for_each_pair([&](int eight, int upper) {
      const float2 product = products(eight, upper);
      write_shared_2(own + System::distance(upper * 8, eight * 8), product.x * norms[upper],
                     product.y * norms[upper]);
    });
  }
  template <class Visit>
  __device__ static void for_each_pair(const Visit& visit) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) visit(eight, upper);
  }

  __device__ void store_within(const float (&products)[2][4]) const {
    const int block = own_block();
    const int g = own_lane() >> 2;
    const float2 factors[2] = {writing(block, 0, 1.0f), writing(block, 1, 1.0f)};
    const auto lower = [&](int eight, int upper, float on_diagonal) {
      const int row = upper * 8 + g;
      const auto one = [&](int i) {
        const int column = eight * 8 + (own_lane() & 3) * 2 + i;
        return column < row ? products[eight][2 * upper + i] : column == row ? on_diagonal : 0.0f;
      };
      return make_float2(one(0) * factors[eight].x, one(1) * factors[eight].y);
    };
    if (own_half() == 0) {
      const uint32_t self = this->self() + (block * kSubBlock + g) * 4;
      const float on_diagonal[2] = {read_shared(self), read_shared(self + 32)};
      store_query(block, block,
                  [&](int eight, int upper) { return lower(eight, upper, on_diagonal[upper]); });
    } else {
      store_key(block, block, [&](int eight, int upper) { return lower(eight, upper, 0.0f); });
    }
  }

  /// A sub-block of rows and an earlier one of columns for each of the first six warps.
  __device__ static bool has_below() { return own_warp() < 6; }
  __device__ static int below_row() {
    const int warp = own_warp();
    return 1 + (warp >= 1 ? 1 : 0) + (warp >= 3 ? 1 : 0);
  }
  __device__ static int below_column() {
    const int row = below_row();
    return own_warp() - row * (row - 1) / 2;
  }

  /// Products of rows of q and of k with columns decayed on the way to them.
  __device__ void multiply_below(float (&of_query)[2][4], float (&of_key)[2][4]) const {
    const int row = below_row();
    const int column_block = below_column();
    const uint32_t a = a_address() + row * kBlockBytes;
    const uint32_t b = b_address() + column_block * kBlockBytes + Memory::kColumns;
    const uint32_t decays = this->between(row, column_block, (own_lane() & 3) * 2);
#pragma unroll 1
    for (int panel = 0; panel < KP / 64; ++panel)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t rows = step_of(a, i) + panel * kPanelBytes;
        const uint32_t low = read_shared_bits(decays + panel * 128 + i * 32);
        const uint32_t high = read_shared_bits(decays + panel * 128 + i * 32 + 16);
        uint32_t rows_q[4];
        uint32_t rows_k[4];
        uint32_t column[4];
        load_blocks(column, step_of(b, i) + panel * kPanelBytes);
        load_blocks(rows_q, rows + Memory::kQuery);
        load_blocks(rows_k, rows + Memory::kKey);
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          const uint32_t first = multiply_pairs(column[2 * eight], low);
          const uint32_t second = multiply_pairs(column[2 * eight + 1], high);
          mma_bf16(of_query[eight], rows_q, first, second);
          mma_bf16(of_key[eight], rows_k, first, second);
        }
      }
  }

  __device__ void store_below(const float (&of_query)[2][4], const float (&of_key)[2][4]) const {
    const int row = below_row();
    const int column_block = below_column();
    const float2 factors[2] = {writing(column_block, 0, kChannelRowScale),
                               writing(column_block, 1, kChannelRowScale)};
    const auto scaled = [&](const float(&x)[2][4]) {
      return [&](int eight, int upper) {
        return make_float2(x[eight][2 * upper] * factors[eight].x,
                           x[eight][2 * upper + 1] * factors[eight].y);
      };
    };
    store_query(row, column_block, scaled(of_query));
    store_key(row, column_block, scaled(of_key));
  }

  /// Right of two of the diagonal blocks of M, where `merge` reads it, by a warp each.
  __device__ void clear_beside() const {
    const int warp = own_warp();
    const int lane = own_lane();
    const int row = (warp - 6) * 32 + lane / 2;
    const uint32_t at = this->system().address(row, (warp - 6) * 32 + kSubBlock + lane % 2 * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) write_shared_2(at + i * 8, 0.0f, 0.0f);
  }
};

/// Places of 16 bytes of a triangle's rows in a system.
struct SystemRows {
  System system;
  __device__ uint32_t piece(int row, int column) const { return system.address(row, column); }
};

/// Y to the chunk's place as bf16, rounded and what rounding took: numbers of a chunk may be e^-80 of others
/// and count beside gradients as small.
__device__ void store_inverse_in_two(const System& system, const DeltaRulePrepared& prepared, int64_t slot) {
  constexpr int kPieces = TriangleTile::kBytes / 16;
  auto* target = reinterpret_cast<uint4*>(prepared.inverse + slot * (2 * kDeltaRuleTriangle));
#pragma unroll
  for (int first = 0; first < kPieces; first += kChannelThreads) {
    const int piece = first + static_cast<int>(threadIdx.x);
    if (piece >= kPieces) break;
    const uint32_t at = triangle_piece_in(SystemRows{system}, piece);
    const float4 left = read_shared_4(at);
    const float4 right = read_shared_4(at + 16);
    const float x[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
    uint32_t rounded[4];
    uint32_t rest[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rounded[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
      const float2 stored = unpack_bf16(rounded[i]);
      rest[i] = pack_bf16(x[2 * i] - stored.x, x[2 * i + 1] - stored.y);
    }
    target[piece] = make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
    target[kPieces + piece] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  }
}

// On a multiprocessor, as shared memory has room for: log-decays of fp32 lie behind the tiles.
template <typename G>
constexpr int kBlocksAtOnce = sizeof(G) == 2 ? 4 : 2;

/// G: type of the log-decays.
template <int KP, typename G>
__global__ void __launch_bounds__(kChannelThreads, kBlocksAtOnce<G>)
    delta_rule_channel_prepare_kernel(const __grid_constant__ DeltaRuleChannelPrepareArgs args) {
  using Pairs = ChannelPairs<KP>;
  let_next_kernel_start();
  const Pairs part(args, dynamic_shared());
  {
    const ChunkPlace place = place_from_end(args.in.shape);
    if (!place.exists) {
      // Nothing for the strong kernel.
      if (threadIdx.x == 0) args.anchored[place.slot(args.in.shape)] = (1 << kSubBlocks) - 1;
      return;
    }
    part.template queue_copies<G>(place);
    part.keep(place);
  }
  copy_async_wait<0>();
  __syncthreads();
  part.template sum_logs<G>();
  part.find_norms();
  __syncthreads();  // tiles as given are done with; all sums are there
  if (part.has_channels()) {
    if (part.own_write_key)
      part.template decay_tiles<true, G>();
    else
      part.template decay_tiles<false, G>();
    const int inverse = part.inverse_columns(part.own_half());
    if (inverse < kSubBlock) part.template end_columns<G>(inverse);
  }
  part.find_between();
  __syncthreads();  // all tiles are there
  float within[2][4] = {};
  part.multiply_within(within);
  const uint32_t common = part.common_notes();
  if ((common & kAllInverse) == 0) {
    const int inverse = min(part.inverse_columns(0), part.inverse_columns(1));
    if (inverse < kSubBlock) part.template add_strong_pairs<G>(within, inverse);
    __syncthreads();
    part.turn_columns();
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    int bits = 0;
#pragma unroll
    for (int i = 0; i < kSubBlocks; ++i)
      bits |= (part.notes(i, 0) & part.notes(i, 1) & kOneAnchor) != 0 ? 1 << i : 0;
    args.anchored[part.slot()] = bits;
  }
  float below_query[2][4] = {};
  float below_key[2][4] = {};
  if (part.has_below()) part.multiply_below(below_query, below_key);
  __syncthreads();  // and done with
  part.store_within(within);
  if (part.has_below())
    part.store_below(below_query, below_key);
  else
    part.clear_beside();
  __syncthreads();
  solve<kChannelThreads / 32>(part.system(), part.beta(), part.own_warp(), part.own_lane());
  store_inverse_in_two(part.system(), args.out, part.slot());
}

}  // namespace

void launch(const DeltaRuleChannelPrepareArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  if (shape.num_chunks * shape.num_value_heads == 0) return;
  by_key_size(shape, [&](auto padded) {
    constexpr int KP = decltype(padded)::value;
    const auto launch_with = [&](auto number) {
      using G = decltype(number);
      launch_kernel(delta_rule_channel_prepare_kernel<KP, G>, grid_of_chunks(shape), kChannelThreads,
                    ChannelPrepareMemory<KP>::template bytes<G>(args.in.write_key.data != nullptr), args,
                    stream);
    };
    if (args.bf16_log_decay)
      launch_with(__nv_bfloat16{});
    else
      launch_with(float{});
  });
}

}  // namespace osdn::kernels
