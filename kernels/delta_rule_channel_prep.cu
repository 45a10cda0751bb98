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

/// The products of a chunk's pairs: M to the system in shared memory, those with q to global memory.
template <int KP>
struct ChannelPairs : ChannelChunk<KP> {
  using Chunk = ChannelChunk<KP>;
  using Memory = typename Chunk::Memory;
  using Chunk::args, Chunk::shape, Chunk::base, Chunk::own_write_key;
  using Chunk::kBlockBytes, Chunk::kPanelBytes, Chunk::kRows;
  using Chunk::own_lane, Chunk::own_warp, Chunk::own_block, Chunk::own_half, Chunk::step_of;

  __device__ ChannelPairs(const ChannelPart<DeltaRuleChannelPrepareArgs>& given, uint32_t memory)
      : Chunk(given, memory) {}

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
          const float2 log = log_decay_pair<G>(args, place, first_token + r, first_channel + 2 * i);
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

  /// Products of the chunk's pairs over the part's channels, once all tiles and sums are there; those of
  /// sub-blocks below the diagonal are added. Returns, in the block's first thread, which sub-blocks have one
  /// anchor.
  template <typename G>
  __device__ int multiply(float (&within)[2][4], float (&below_query)[2][4], float (&below_key)[2][4]) const {
    if (this->has_channels()) {
      if (own_write_key)
        this->template decay_tiles<true, G>();
      else
        this->template decay_tiles<false, G>();
      const int inverse = this->inverse_columns(own_half());
      if (inverse < kSubBlock) this->template end_columns<G>(inverse);
    }
    this->find_between();
    __syncthreads();  // all tiles are there
    multiply_within(within);
    const uint32_t common = this->common_notes();
    if ((common & kAllInverse) == 0) {
      const int inverse = min(this->inverse_columns(0), this->inverse_columns(1));
      if (inverse < kSubBlock) add_strong_pairs<G>(within, inverse);
      __syncthreads();
      this->turn_columns();
      __syncthreads();
    }
    int anchored = 0;
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < kSubBlocks; ++i)
        anchored |= (this->notes(i, 0) & this->notes(i, 1) & kOneAnchor) != 0 ? 1 << i : 0;
    }
    if (has_below()) multiply_below(below_query, below_key);
    return anchored;
  }

  /// From all products to the pairs and Y in global memory; the tiles are done with.
  __device__ void finish(const float (&within)[2][4], const float (&below_query)[2][4],
                         const float (&below_key)[2][4]) const {
    store_within(within);
    if (has_below())
      store_below(below_query, below_key);
    else
      clear_beside();
    __syncthreads();
    solve<kChannelThreads / 32>(this->system(), this->beta(), own_warp(), own_lane());
    store_inverse_in_two(this->system(), args.out, this->slot());
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

// On a multiprocessor, as shared memory has room for: log-decays of fp32 lie behind the tiles.
template <typename G>
constexpr int kBlocksAtOnce = sizeof(G) == 2 ? 4 : 2;

using PrepareParams = ChannelPart<DeltaRuleChannelPrepareArgs>;

/// Nothing of a chunk that does not exist is for the strong kernel.
__device__ void leave_to_none(const DeltaRuleChannelPrepareArgs& args, const ChunkPlace& place) {
  if (threadIdx.x == 0) args.anchored[place.slot(args.in.shape)] = (1 << kSubBlocks) - 1;
}

/// G: type of the log-decays.
template <int KP, typename G>
__global__ void __launch_bounds__(kChannelThreads, kBlocksAtOnce<G>)
    delta_rule_channel_prepare_kernel(const __grid_constant__ PrepareParams args) {
  const ChannelPairs<KP> part(args, dynamic_shared());
  let_next_kernel_start();
  {
    const ChunkPlace place = place_from_end(args.in.shape);
    if (!place.exists) return leave_to_none(args, place);
    part.template queue_copies<G>(place);
    part.keep(place);
  }
  copy_async_wait<0>();
  __syncthreads();
  part.template sum_logs<G>();
  part.find_norms();
  __syncthreads();  // tiles as given are done with; all sums are there
  float within[2][4] = {};
  float below_query[2][4] = {};
  float below_key[2][4] = {};
  const int anchored = part.template multiply<G>(within, below_query, below_key);
  if (threadIdx.x == 0) args.anchored[part.slot()] = anchored;
  __syncthreads();  // and done with
  part.finish(within, below_query, below_key);
}

// Keys above kDeltaRuleNarrowKeySize: in two parts of so many channels one after the other.
constexpr int kParts = 2;

struct WidePrepareParams {
  PrepareParams part[kParts];
};

/// The norms of a chunk's rows and <q, w> of every token from global memory, four threads a token.
__device__ void find_wide_norms(const WidePrepareParams& params, const ChunkPlace& place,
                                const ChannelChunk<kDeltaRuleNarrowKeySize>& chunk) {
  const int row = static_cast<int>(threadIdx.x) / 4;
  const int first = static_cast<int>(threadIdx.x) % 4;
  float of_query = 0.0f;
  float of_key = 0.0f;
  float of_write = 0.0f;
  for (int i = 0; i < kParts; ++i) {
    const DeltaRuleInputs& in = params.part[i].in;
    const int pieces = row < place.rows ? in.shape.key_size / 8 : 0;
    const auto piece_of = [&](const DeltaRuleRows& rows, int head, int piece) {
      return __ldg(reinterpret_cast<const uint4*>(rows_at(rows, place.token + row, head)) + piece);
    };
    for (int piece = first; piece < pieces; piece += 4) {
      const uint4 q = piece_of(in.q, place.key_head, piece);
      const uint4 k = piece_of(in.k, place.key_head, piece);
      const uint4 w = chunk.own_write_key ? piece_of(in.write_key, place.head, piece) : k;
      of_query += dot_of_pieces(q, q);
      of_key += dot_of_pieces(k, k);
      of_write += dot_of_pieces(q, w);
    }
  }
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    of_query += __shfl_xor_sync(0xffffffffu, of_query, distance);
    of_key += __shfl_xor_sync(0xffffffffu, of_key, distance);
    of_write += __shfl_xor_sync(0xffffffffu, of_write, distance);
  }
  if (first == 0) chunk.keep_norms(row, of_query, of_key, of_write);
}

template <typename G>
__global__ void __launch_bounds__(kChannelThreads, 2)
    delta_rule_channel_wide_prepare_kernel(const __grid_constant__ WidePrepareParams params) {
  using Pairs = ChannelPairs<kDeltaRuleNarrowKeySize>;
  const ChunkPlace place = place_from_end(params.part[0].in.shape);
  if (!place.exists) return leave_to_none(params.part[0], place);
  float within[2][4] = {};
  float below_query[2][4] = {};
  float below_key[2][4] = {};
  int anchored = (1 << kSubBlocks) - 1;
#pragma unroll 1
  for (int i = 0; i < kParts; ++i) {
    const Pairs part(params.part[i], dynamic_shared());
    __syncthreads();  // the tiles of the part before are done with
    part.template queue_copies<G>(place);
    part.keep(place);
    if (i == 0) {
      __syncthreads();  // the place is there
      find_wide_norms(params, place, part);
    }
    copy_async_wait<0>();
    __syncthreads();
    part.template sum_logs<G>();
    __syncthreads();
    float of_part[2][4] = {};
    anchored &= part.template multiply<G>(of_part, below_query, below_key);
#pragma unroll
    for (int eight = 0; eight < 2; ++eight)
#pragma unroll
      for (int j = 0; j < 4; ++j) within[eight][j] += of_part[eight][j];
  }
  const Pairs part(params.part[0], dynamic_shared());
  if (threadIdx.x == 0) params.part[0].anchored[part.slot()] = anchored;
  __syncthreads();
  part.finish(within, below_query, below_key);
}

}  // namespace

void launch(const DeltaRuleChannelPrepareArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  if (shape.num_chunks * shape.num_value_heads == 0) return;
  const auto with_logs = [&](auto number) {
    using G = decltype(number);
    const bool own_write_key = args.in.write_key.data != nullptr;
    if (shape.key_size > kDeltaRuleNarrowKeySize) {
      const auto part_of = [&](int first) {
        PrepareParams part = channel_part(args, first);
        part.q += first;
        part.k += first;
        part.write_key += first;
        part.chunk_decay += first;
        return part;
      };
      launch_kernel(delta_rule_channel_wide_prepare_kernel<G>, grid_of_chunks(shape), kChannelThreads,
                    ChannelPrepareMemory<kDeltaRuleNarrowKeySize>::bytes<G>(own_write_key),
                    WidePrepareParams{part_of(0), part_of(kDeltaRuleNarrowKeySize)}, stream);
      return;
    }
    by_key_size(shape, [&](auto padded) {
      constexpr int KP = decltype(padded)::value;
      launch_kernel(delta_rule_channel_prepare_kernel<KP, G>, grid_of_chunks(shape), kChannelThreads,
                    ChannelPrepareMemory<KP>::template bytes<G>(own_write_key),
                    PrepareParams{args, shape.key_size, KP}, stream);
    });
  };
  if (args.bf16_log_decay)
    with_logs(__nv_bfloat16{});
  else
    with_logs(float{});
}

}  // namespace osdn::kernels
