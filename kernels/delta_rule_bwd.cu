// Third pass of the delta rule: the reverse scan over the chunks of a sequence (docs/ops/delta_rule.md eq. 7,
// 9, 12), the mirror of the forward scan: the same block per (sequence, value head, value channels), the
// gradient of the transposed state in registers. Writes what the gradient pass needs: F of every token and
// the gradient of the state after every chunk.
#include "kernels/detail/delta_rule_scan.cuh"

namespace osdn::kernels {
namespace {

struct BackwardScanParams {
  DeltaRuleBackwardScanArgs args;
  int stages = 1;
};

/// This warp's channels of dO, transposed, times a factor a token: A fragments.
template <class Stage, typename Factor>
__device__ void load_upstream(uint32_t (&out)[kChunk / 16][4], const Stage& stage, const Factor& factor,
                              int warp, int lane) {
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
    load_a_of_columns(out[k], stage.value, warp * kWarpChannels, k * 16, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 f = factor(2 * k + half);
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        const float2 value = unpack_bf16(out[k][i]);
        out[k][i] = pack_bf16(value.x * f.x, value.y * f.y);
      }
    }
  }
}

template <int KP, int Warps, Decay kDecay, class Products>
__device__ void scan_backward(const DeltaRuleBackwardScanArgs& args, uint32_t shared_base, int stages) {
  using Stage = ScanStage<KP, Warps, kDecay, Products>;
  // A wide state fills the registers: all of it rounded, or its products beside the solve, would not fit.
  constexpr bool kWide = KP > kDeltaRuleNarrowKeySize;
  const DeltaRuleShape& shape = args.in.shape;
  const ScanBlock<Stage> block(args.in, shared_base, stages);
  const int warp = block.warp;
  const int lane = block.lane;
  const auto copy = [&](auto part, int64_t chunk, const Stage& stage) {
    stage.template copy_async<decltype(part)::value, true>(args.in, args.prepared, args.d_o, args.chunk_decay,
                                                           block.place(shape, chunk), block.first_channel,
                                                           [] {});
  };
  if (begin_scan<true, Products>(block, copy, NothingToRetire{})) return;
  StateRows<KP> d_state;
  d_state.load(shape, args.d_final == nullptr ? nullptr : args.d_final + block.state_row,
               block.first_warp_channel(), lane);
  for_each_chunk<true, Products>(block, copy, [&](int64_t chunk, const Stage& stage, const auto& parts) {
    const ChunkPlace place = block.place(shape, chunk);
    const int64_t slot = place.slot(shape);

    float x[kChunk / 8][4] = {};
    if constexpr (kWide) {
#pragma unroll
      for (int k = 0; k < KP / 16; ++k) {
        uint32_t rounded[4];
        d_state.round_block(rounded, k);
        Products::add_block_times_rows(x, rounded, stage.w, k, lane);
        store_fragment<KP / 16>(args.d_states + block.value_rows(slot, KP), rounded, k, warp, lane);
      }
    } else {
      uint32_t rounded[KP / 16][4];
      d_state.round(rounded);
      Products::begin(x);
      Products::template add_times_rows<KP>(x, rounded, stage.w, lane);
      Products::end();
      store_blocks(args.d_states + block.value_rows(slot, KP), rounded, warp, lane);
    }
    parts.wait_for_late();
    uint32_t upstream[kChunk / 16][4];  // dO, times the factors of the query
    load_upstream(
        upstream, stage,
        [&](int n) {
          const float2 rstd = column_pair(stage.q_rstd, n, lane);
          return make_float2(rstd.x * args.in.scale, rstd.y * args.in.scale);
        },
        warp, lane);
    if constexpr (kDecay == Decay::kScalar) {
      Products::template wait<0>(x);
      scale_columns(x, [&](int n) { return stage.to_end_pair(n, lane); });
    }
    Products::begin(x);
    Products::template add_times_upper<false>(x, upstream, stage.pairs, lane);
    Products::end();
    Products::template wait<0>(x);
    scale_columns(x, [&](int n) { return stage.write_pair(n, lane); });
    const auto add_read = [&] {  // what the queries read
      if constexpr (kDecay != Decay::kNone) d_state.decay(stage, lane);
      if constexpr (kWide || kDecay == Decay::kScalar) {
        load_upstream(
            upstream, stage,
            [&](int n) {
              const float2 rstd = column_pair(stage.q_rstd, n, lane);
              const float2 from_start = stage.from_start_pair(n, lane);
              return make_float2(rstd.x * args.in.scale * from_start.x,
                                 rstd.y * args.in.scale * from_start.y);
            },
            warp, lane);
      }
      Products::begin(d_state.value);
      Products::template add_outer<KP>(d_state.value, upstream, stage.q, lane);
      Products::end();
    };
    if constexpr (!kWide) add_read();  // while the solve goes on
    const auto beta_pair = [&](int n) { return column_pair(stage.beta, n, lane); };
    const float unit = correct<Products, true>(x, stage, beta_pair, NoProducts{}, lane);  // of F in x
    Products::template wait<0>(d_state.value);
    parts.give_early_back();

    uint32_t rows[kChunk / 16][4];
    round_scaled(rows, x, [&](int n) {
      const float2 beta = column_pair(stage.beta, n, lane);
      const float2 rstd = column_pair(stage.k_rstd, n, lane);
      const float2 from_start = stage.from_start_pair(n, lane);
      return make_float2(-unit * beta.x * rstd.x * from_start.x, -unit * beta.y * rstd.y * from_start.y);
    });
    const auto store_solved = [&] {
      uint32_t solved[kChunk / 16][4];
      round_scaled(solved, x, [unit](int) { return make_float2(unit, unit); });
      store_blocks(args.solved + block.value_rows(slot, kChunk), solved, warp, lane);
    };
    if constexpr (kWide) {
      store_solved();
      add_read();
    }
    Products::begin(d_state.value);
    Products::template add_outer<KP>(d_state.value, rows, stage.k, lane);
    Products::end();
    if constexpr (!kWide) store_solved();
    Products::template wait<0>(d_state.value);
  });
  if (args.d_initial != nullptr)
    d_state.store(shape, args.d_initial + block.state_row, block.first_warp_channel(), lane);
}

template <int KP, int Warps, Decay kDecay, class Products>
__global__ void __launch_bounds__((ScanStage<KP, Warps, kDecay, Products>::kThreads), 1)
    delta_rule_backward_scan_kernel(const __grid_constant__ BackwardScanParams params) {
  if constexpr (Products::kAvailable)
    scan_backward<KP, Warps, kDecay, Products>(params.args, dynamic_shared(), params.stages);
}

}  // namespace

void launch(const DeltaRuleBackwardScanArgs& args, CUstream_st* stream) {
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
    launch_kernel(delta_rule_backward_scan_kernel<KP, Warps, kDecay, Products>, grid, Stage::kThreads,
                  stages * bytes + scan_barrier_bytes(stages), BackwardScanParams{args, stages}, stream);
  });
}

}  // namespace osdn::kernels
