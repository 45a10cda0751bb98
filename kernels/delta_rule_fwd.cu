// Second pass of the delta rule: the scan over the chunks of a sequence (docs/ops/delta_rule.md eq. 5, 6,
// 11), one block a (sequence, value head, 64 or 128 value channels). Two stages of tiles where shared memory
// allows.
#include "kernels/common/early_start.cuh"
#include "kernels/detail/delta_rule_scan.cuh"

namespace osdn::kernels {
namespace {

struct ForwardParams {
  DeltaRuleForwardArgs args;
  int stages = 1;
};

/// Place of the four 8x8 blocks of the warp's channels and tokens 16 pair .. + 15 in the value tile, as
/// load_blocks_transposed takes it.
template <class Stage>
__device__ uint32_t value_blocks(const Stage& stage, int pair, int warp, int lane) {
  return stage.value.piece(pair * 16 + (lane >> 4) * 8 + (lane & 7),
                           warp * kWarpChannels + ((lane >> 3) & 1) * 8);
}

/// The warp's channels of the output, scaled by the query's factors, over its values in their tile.
template <class Products, class Stage>
__device__ void output_to_tile(const float (&o)[kChunk / 8][4], const Stage& stage, float scale, int warp,
                               int lane) {
  __syncwarp();  // all lanes have read the warp's values
#pragma unroll
  for (int pair = 0; pair < kChunk / 16; ++pair) {
    uint32_t blocks[4];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int n = 2 * pair + side;
      const float2 rstd = column_pair(stage.q_rstd, n, lane);
      const float2 factor = make_float2(scale * rstd.x, scale * rstd.y);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        blocks[2 * side + half] = pack_bf16(o[n][2 * half] * factor.x, o[n][2 * half + 1] * factor.y);
    }
    if constexpr (Products::kWarpgroup) {
      store_blocks_transposed(value_blocks(stage, pair, warp, lane), blocks);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        write_shared_bits(
            stage.value.piece(pair * 16 + (i >> 1) * 8 + (lane >> 2), warp * kWarpChannels + (i & 1) * 8) +
                (lane & 3) * 4,
            transposed_block(blocks[i]));
    }
  }
}

/// The output of channels `channel` .. + 7 of the block's and every Step-th token from `first` on, from the
/// value tile to global memory.
template <int Step, class Stage>
__device__ void output_from_tile(const Stage& stage, const DeltaRuleForwardArgs& args,
                                 const ChunkPlace& place, int first_channel, int channel, int first) {
  const DeltaRuleShape& shape = args.in.shape;
  if (first_channel + channel >= shape.value_size) return;
  const int64_t distance = static_cast<int64_t>(shape.num_value_heads) * shape.value_size;  // of tokens
  __nv_bfloat16* to = args.o + (place.token + first) * distance +
                      static_cast<int64_t>(place.head) * shape.value_size + first_channel + channel;
  const uint32_t from = stage.value.piece(first, channel);
  constexpr int kAtOnce = 4;
  static_assert(Step % 8 == 0 && kChunk % (kAtOnce * Step) == 0);  // so that pieces lie at equal distances
#pragma unroll
  for (int row = 0; row < kChunk; row += kAtOnce * Step) {
    uint4 pieces[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) pieces[i] = read_shared_piece(from + (row + i * Step) * 128);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + row + i * Step < place.rows) *reinterpret_cast<uint4*>(to) = pieces[i];
      to += Step * distance;
    }
  }
}

template <int KP, int Warps, Decay kDecay, class Products>
__device__ void scan_forward(const DeltaRuleForwardArgs& args, uint32_t shared_base, int stages) {
  using Stage = ScanStage<KP, Warps, kDecay, Products>;
  const DeltaRuleShape& shape = args.in.shape;
  const ScanBlock<Stage> block(args.in, shared_base, stages);
  const int warp = block.warp;
  const auto copy = [&](auto part, int64_t chunk, const Stage& stage) {
    stage.template copy_async<decltype(part)::value, false>(args.in, args.prepared, args.in.v,
                                                            args.chunk_decay, block.place(shape, chunk),
                                                            block.first_channel, [chunk] {
                                                              if constexpr (Products::kWarpgroup)
                                                                if (chunk == 0) wait_for_kernel_before();
                                                            });
  };
  // The warps that copy take the output of a chunk out of its stage, a thread the pieces that it brings next.
  const auto retire = [&](int64_t chunk, const Stage& stage) {
    constexpr int kPieces = Stage::kValues / 8;  // of a row
    const int thread = copying_thread();
    output_from_tile<Stage::kCopyThreads / kPieces>(
        stage, args, block.place(shape, chunk), block.first_channel, thread % kPieces * 8, thread / kPieces);
  };
  if (begin_scan<false, Products>(block, copy, retire)) return;
  StateRows<KP> state;
  state.load(shape, args.initial_state == nullptr ? nullptr : args.initial_state + block.state_row,
             block.first_warp_channel(), block.lane);
  for_each_chunk<false, Products>(block, copy, [&](int64_t chunk, const Stage& stage, const auto& parts) {
    // Where the registers are full the lane is read anew, so that what is derived from it is not kept around
    // the loop.
    constexpr bool kFull = KP > kDeltaRuleNarrowKeySize || (!OSDN_WGMMA && kDecay != Decay::kChannel);
    const int lane = kFull ? copying_thread() % 32 : block.lane;
    const ChunkPlace place = block.place(shape, chunk);
    const int64_t slot = place.slot(shape);

    float x[kChunk / 8][4] = {};
    float o[kChunk / 8][4] = {};
    constexpr bool kWideKeys = KP > kDeltaRuleNarrowKeySize;
    uint32_t rounded[kWideKeys ? 1 : KP / 16][4];
    // Of the state as it was before the chunk: what the queries read.
    const auto read_by_queries = [&] {
      if constexpr (!kWideKeys) {
        Products::begin(o);
        Products::template add_times_rows<KP>(o, rounded, stage.q, lane);
        Products::end();
      }
    };
    if constexpr (kWideKeys) {
      // Registers have no room for all of the state a second time, rounded.
#pragma unroll
      for (int k = 0; k < KP / 16; ++k) {
        state.round_block(rounded[0], k);
        Products::add_block_times_rows(x, rounded[0], stage.k, k, lane);
        Products::add_block_times_rows(o, rounded[0], stage.q, k, lane);
        if (args.states != nullptr)
          store_fragment<KP / 16>(args.states + block.value_rows(slot, KP), rounded[0], k, warp, lane);
      }
    } else {
      state.round(rounded);
      Products::begin(x);
      Products::template add_times_rows<KP>(x, rounded, stage.k, lane);
      Products::end();
      if constexpr (!Products::kWarpgroup) read_by_queries();
      if (args.states != nullptr) store_blocks(args.states + block.value_rows(slot, KP), rounded, warp, lane);
    }
    parts.wait_for_late();
    // What the rest needs of the stage, by warpgroups read while the product goes on.
    constexpr bool kEarly = Products::kWarpgroup;
    float2 early_reading[kEarly ? kChunk / 8 : 1];
    float2 early_beta[kEarly ? kChunk / 8 : 1];
    uint32_t early_values[kEarly ? kChunk / 16 : 1][4];
    const auto load_reading = [&](int n) {
      float2 factor = column_pair(stage.k_rstd, n, lane);
      if constexpr (kDecay == Decay::kScalar) {
        const float2 from_start = stage.from_start_pair(n, lane);
        factor = make_float2(factor.x * from_start.x, factor.y * from_start.y);
      }
      return factor;
    };
    if constexpr (kEarly) {
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
        early_reading[n] = load_reading(n);
        early_beta[n] = column_pair(stage.beta, n, lane);
      }
#pragma unroll
      for (int pair = 0; pair < kChunk / 16; ++pair)
        load_blocks_transposed(early_values[pair], value_blocks(stage, pair, warp, lane));
    }
    Products::template wait<0>(x);
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {
      uint32_t(&v)[4] = early_values[kEarly ? pair : 0];
      if constexpr (!kEarly) load_blocks_transposed(v, value_blocks(stage, pair, warp, lane));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = 2 * pair + half;
        float2 reading;
        if constexpr (kEarly)
          reading = early_reading[n];
        else
          reading = load_reading(n);
        const float2 low = unpack_bf16(v[2 * half]);
        const float2 high = unpack_bf16(v[2 * half + 1]);
        x[n][0] = low.x - reading.x * x[n][0];
        x[n][1] = low.y - reading.y * x[n][1];
        x[n][2] = high.x - reading.x * x[n][2];
        x[n][3] = high.y - reading.y * x[n][3];
      }
    }
    const auto beta_pair = [&](int n) {
      if constexpr (kEarly)
        return early_beta[n];
      else
        return column_pair(stage.beta, n, lane);
    };
    // The queries' product is queued behind the solve, so that the tensor cores have it while the solve's
    // sums come back.
    const auto queue_queries = [&] {
      if constexpr (kEarly) {
        read_by_queries();
#pragma unroll
        for (int n = 0; n < kChunk / 8; ++n) {
          const float2 writing = stage.write_pair(n, lane);
          early_beta[n] = make_float2(early_beta[n].x * writing.x, early_beta[n].y * writing.y);
        }
      }
    };
    // Of E on its way into the state and the output.
    const auto writing_pair = [&](int n) {
      if constexpr (kEarly) return early_beta[n];
      const float2 beta = column_pair(stage.beta, n, lane);
      const float2 writing = stage.write_pair(n, lane);
      return make_float2(beta.x * writing.x, beta.y * writing.y);
    };
    const float unit =
        correct<Products, false>(x, stage, beta_pair, products_behind(queue_queries), lane);  // of E in x

    uint32_t rows[kChunk / 16][4];
    round_scaled(rows, x, [&](int n) {
      const float2 writing = writing_pair(n);
      return make_float2(unit * writing.x, unit * writing.y);
    });
    Products::template wait<0>(o);
    parts.give_early_back();
    if constexpr (kDecay == Decay::kScalar)
      scale_columns(o, [&](int n) { return stage.from_start_pair(n, lane); });
    Products::begin(o);
    Products::template add_times_lower<false>(o, rows, stage.pairs, lane);
    Products::end();
    if constexpr (kDecay != Decay::kNone) state.decay(stage, lane);
    if constexpr (kDecay == Decay::kScalar) {
      uint32_t to_end_rows[kChunk / 16][4];
      round_scaled(to_end_rows, x, [&](int n) {
        const float2 to_end = stage.to_end_pair(n, lane);
        const float2 writing = writing_pair(n);
        return make_float2(unit * writing.x * to_end.x, unit * writing.y * to_end.y);
      });
      Products::begin(state.value);
      Products::template add_outer<KP>(state.value, to_end_rows, stage.w, lane);
    } else {
      Products::begin(state.value);
      Products::template add_outer<KP>(state.value, rows, stage.w, lane);
    }
    Products::end();
    Products::template wait<1>(o);
    output_to_tile<Products>(o, stage, args.in.scale, warp, lane);
    if (args.error != nullptr) {
      uint32_t error[kChunk / 16][4];
      round_scaled(error, x, [unit](int) { return make_float2(unit, unit); });
      store_blocks(args.error + block.value_rows(slot, kChunk), error, warp, lane);
    }
    if constexpr (!Products::kWarpgroup) {
      __syncwarp();
      output_from_tile<16>(stage, args, place, block.first_channel, warp * kWarpChannels + (lane & 1) * 8,
                           lane >> 1);
    }
    Products::template wait<0>(state.value);
  });
  state.store(shape, args.final_state + block.state_row, block.first_warp_channel(), block.lane);
}

template <int KP, int Warps, Decay kDecay, class Products>
__global__ void __launch_bounds__((ScanStage<KP, Warps, kDecay, Products>::kThreads), 1)
    delta_rule_forward_kernel(const __grid_constant__ ForwardParams params) {
  if constexpr (Products::kAvailable)
    scan_forward<KP, Warps, kDecay, Products>(params.args, dynamic_shared(), params.stages);
}

}  // namespace

void launch(const DeltaRuleForwardArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  const int64_t items = shape.num_sequences * shape.num_value_heads;
  if (items == 0) return;
  by_scan_shape(args.in, args.chunk_decay, [&](auto padded, auto warps, auto decay, auto products) {
    constexpr int KP = decltype(padded)::value;
    constexpr int Warps = decltype(warps)::value;
    constexpr Decay kDecay = decltype(decay)::value;
    using Products = decltype(products);
    using Stage = ScanStage<KP, Warps, kDecay, Products>;
    const int bytes = Stage::bytes(args.in.write_key.data != nullptr);
    const int stages = scan_stages<Products>(bytes);
    const dim3 grid(static_cast<unsigned>(items),
                    static_cast<unsigned>(delta_rule_padded_value_size(shape.value_size) / Stage::kValues));
    const auto kernel = delta_rule_forward_kernel<KP, Warps, kDecay, Products>;
    const int shared_bytes = stages * bytes + scan_barrier_bytes(stages);
    const ForwardParams params{args, stages};
    if (Products::kWarpgroup && args.behind_prepare)
      launch_early_kernel(kernel, grid, Stage::kThreads, shared_bytes, params, stream);
    else
      launch_kernel(kernel, grid, Stage::kThreads, shared_bytes, params, stream);
  });
}

}  // namespace osdn::kernels
