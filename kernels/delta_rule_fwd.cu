// Second pass of the delta rule: the scan over the chunks of a sequence (docs/ops/delta_rule.md eq. 5, 6,
// 11), one block a (sequence, value head, 64 or 128 value channels). Two stages of tiles where shared memory
// allows.
#include "kernels/detail/delta_rule_scan.cuh"

namespace osdn::kernels {
namespace {

struct ForwardParams {
  DeltaRuleForwardArgs args;
  int stages = 1;
};

/// The warp's channels of the output, scaled by the query's factors, through its own columns of the value
/// tile to global memory.
template <class Stage>
__device__ void store_output(const float (&o)[kChunk / 8][4], const Stage& stage,
                             const DeltaRuleForwardArgs& args, const ChunkPlace& place, int first_channel,
                             int warp, int lane) {
  const DeltaRuleShape& shape = args.in.shape;
  __syncwarp();  // all lanes have read the warp's values
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    const float2 rstd = column_pair(stage.q_rstd, n, lane);
    const float2 factor = make_float2(args.in.scale * rstd.x, args.in.scale * rstd.y);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t block =
          transposed_block(pack_bf16(o[n][2 * half] * factor.x, o[n][2 * half + 1] * factor.y));
      write_shared_bits(
          stage.value.piece(n * 8 + (lane >> 2), warp * kWarpChannels + half * 8) + (lane & 3) * 4, block);
    }
  }
  __syncwarp();
  const int channel = warp * kWarpChannels + (lane & 1) * 8;  // within the block's
  if (first_channel + channel >= shape.value_size) return;
  for (int row = lane >> 1; row < place.rows; row += 16) {
    const int64_t at = ((place.token + row) * shape.num_value_heads + place.head) * shape.value_size +
                       first_channel + channel;
    *reinterpret_cast<uint4*>(args.o + at) = read_shared_piece(stage.value.piece(row, channel));
  }
}

template <int KP, int Warps, Decay kDecay, class Products>
__device__ void scan_forward(const DeltaRuleForwardArgs& args, uint32_t shared_base, int stages) {
  using Stage = ScanStage<KP, Warps, kDecay, Products>;
  const DeltaRuleShape& shape = args.in.shape;
  const ScanBlock<Stage> block(args.in, shared_base, stages);
  const int warp = block.warp;
  const auto copy = [&](int64_t chunk, const Stage& stage) {
    stage.copy_async(args.in, args.prepared, args.in.v, args.chunk_decay,
                     ChunkPlace(shape, block.sequence, chunk, block.head), block.first_channel);
  };
  if (begin_scan<false, Products>(block, copy)) return;
  StateRows<KP> state;
  state.load(shape, args.initial_state == nullptr ? nullptr : args.initial_state + block.state_row,
             block.first_warp_channel(), block.lane);
  for_each_chunk<false, Products>(block, copy, [&](int64_t chunk, const Stage& stage) {
    // Where the state fills the registers the lane is read anew, so that what is derived from it is not kept
    // around the loop.
    const int lane = KP > kDeltaRuleNarrowKeySize ? copying_thread() % 32 : block.lane;
    const ChunkPlace place(shape, block.sequence, chunk, block.head);
    const int64_t slot = place.slot(shape);

    float x[kChunk / 8][4] = {};
    float o[kChunk / 8][4] = {};
    if constexpr (KP > kDeltaRuleNarrowKeySize) {
      // Registers have no room for all of the state a second time, rounded.
#pragma unroll
      for (int k = 0; k < KP / 16; ++k) {
        uint32_t rounded[4];
        state.round_block(rounded, k);
        Products::add_block_times_rows(x, rounded, stage.k, k, lane);
        Products::add_block_times_rows(o, rounded, stage.q, k, lane);
        if (args.states != nullptr)
          store_fragment<KP / 16>(args.states + block.value_rows(slot, KP), rounded, k, warp, lane);
      }
    } else {
      uint32_t rounded[KP / 16][4];
      state.round(rounded);
      Products::begin(x, o);
      Products::template add_times_rows<KP>(x, rounded, stage.k, lane);
      Products::end();
      Products::template add_times_rows<KP>(o, rounded, stage.q, lane);
      Products::end();
      if (args.states != nullptr) store_blocks(args.states + block.value_rows(slot, KP), rounded, warp, lane);
      Products::template wait<1>(x);
    }
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {
      uint32_t v[4];
      load_blocks_transposed(v, stage.value.piece(pair * 16 + (lane >> 4) * 8 + (lane & 7),
                                                  warp * kWarpChannels + ((lane >> 3) & 1) * 8));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = 2 * pair + half;
        float2 reading = column_pair(stage.k_rstd, n, lane);
        if constexpr (kDecay == Decay::kScalar) {
          const float2 from_start = stage.from_start_pair(n, lane);
          reading = make_float2(reading.x * from_start.x, reading.y * from_start.y);
        }
        const float2 low = unpack_bf16(v[2 * half]);
        const float2 high = unpack_bf16(v[2 * half + 1]);
        x[n][0] = low.x - reading.x * x[n][0];
        x[n][1] = low.y - reading.y * x[n][1];
        x[n][2] = high.x - reading.x * x[n][2];
        x[n][3] = high.y - reading.y * x[n][3];
      }
    }
    const float unit = correct<Products, false>(x, stage, lane);  // of E in x
    Products::template wait<0>(o);

    uint32_t rows[kChunk / 16][4];
    round_scaled(rows, x, [&](int n) {
      const float2 beta = column_pair(stage.beta, n, lane);
      const float2 writing = stage.write_pair(n, lane);
      return make_float2(unit * beta.x * writing.x, unit * beta.y * writing.y);
    });
    if constexpr (kDecay == Decay::kScalar)
      scale_columns(o, [&](int n) { return stage.from_start_pair(n, lane); });
    Products::begin(o);
    Products::template add_times_lower<false>(o, rows, stage.pairs, lane);
    Products::end();
    if constexpr (kDecay != Decay::kNone) state.decay(stage, lane);
    if constexpr (kDecay == Decay::kScalar) {
      uint32_t to_end_rows[kChunk / 16][4];
      round_scaled(to_end_rows, x, [&](int n) {
        const float2 beta = column_pair(stage.beta, n, lane);
        const float2 writing = stage.write_pair(n, lane);
        const float2 to_end = stage.to_end_pair(n, lane);
        return make_float2(unit * beta.x * writing.x * to_end.x, unit * beta.y * writing.y * to_end.y);
      });
      Products::begin(state.value);
      Products::template add_outer<KP>(state.value, to_end_rows, stage.w, lane);
    } else {
      Products::begin(state.value);
      Products::template add_outer<KP>(state.value, rows, stage.w, lane);
    }
    Products::end();
    Products::template wait<1>(o);
    if (args.error != nullptr) {
      uint32_t error[kChunk / 16][4];
      round_scaled(error, x, [unit](int) { return make_float2(unit, unit); });
      store_blocks(args.error + block.value_rows(slot, kChunk), error, warp, lane);
    }
    store_output(o, stage, args, place, block.first_channel, warp, lane);
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
    launch_kernel(delta_rule_forward_kernel<KP, Warps, kDecay, Products>, grid, Stage::kThreads,
                  stages * bytes + scan_barrier_bytes(stages), ForwardParams{args, stages}, stream);
  });
}

}  // namespace osdn::kernels
