// Third pass of the delta rule: the reverse scan over the chunks of a sequence (docs/ops/delta_rule.md eq. 7,
// 9, 12), the mirror of the forward scan: the same block per (sequence, value head, value channels), the
// gradient of the transposed state in registers. Writes what the gradient pass needs: F of every token and
// the gradient of the state after every chunk.
#include "kernels/detail/delta_rule_launch.h"
#include "kernels/detail/delta_rule_scan.cuh"

namespace osdn::kernels {
namespace {

struct BackwardScanParams {
  DeltaRuleBackwardScanArgs args;
  int stages = 1;
};

template <int KP, int Warps>
__global__ void __launch_bounds__(Warps * 32, 1)
    delta_rule_backward_scan_kernel(const __grid_constant__ BackwardScanParams params) {
  using Stage = ScanStage<KP, Warps>;
  extern __shared__ __align__(128) unsigned char memory[];
  const DeltaRuleBackwardScanArgs& args = params.args;
  const DeltaRuleShape& shape = args.in.shape;
  const ScanBlock<Stage> block(args.in, memory);
  const int warp = block.warp;
  const int lane = block.lane;
  const auto start_copy = [&](int64_t chunk) {
    block.stage(chunk, params.stages)
        .copy_async(args.in, args.prepared, args.d_o, block.place(shape, chunk), block.first_channel);
  };

  if (block.chunks > 0) start_copy(block.chunks - 1);
  StateRows<KP> d_state;
  d_state.load(shape, args.d_final == nullptr ? nullptr : args.d_final + block.state_row, block.channel(),
               lane);

  for (int64_t chunk = block.chunks - 1; chunk >= 0; --chunk) {
    copy_async_wait<0>();
    __syncthreads();
    if (params.stages == 2 && chunk > 0) start_copy(chunk - 1);
    const Stage stage = block.stage(chunk, params.stages);
    const ChunkPlace place = block.place(shape, chunk);
    const int64_t slot = place.slot(shape);

    float x[kChunk / 8][4] = {};
    {
      uint32_t rounded[KP / 16][4];
      d_state.round(rounded);
      store_blocks(args.d_states + (slot * block.padded_values + block.first_channel) * KP, rounded, warp,
                   lane);
      times_rows<KP>(x, rounded, stage.w, lane);
    }
    // dO transposed, times the factors of the query.
    uint32_t upstream[kChunk / 16][4];
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) {
      load_a_of_columns(upstream[k], stage.value, warp * kWarpChannels, k * 16, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 rstd = column_pair(stage.q_rstd, 2 * k + half, lane);
        const float2 factor = make_float2(rstd.x * args.in.scale, rstd.y * args.in.scale);
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float2 value = unpack_bf16(upstream[k][i]);
          upstream[k][i] = pack_bf16(value.x * factor.x, value.y * factor.y);
        }
      }
    }
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {
#pragma unroll
      for (int k = pair; k < kChunk / 16; ++k) {
        uint32_t b[4];
        load_b_of_columns(b, stage.pairs, pair * 16, k * 16, lane);
        mma_bf16(x[2 * pair], upstream[k], b[0], b[1]);
        mma_bf16(x[2 * pair + 1], upstream[k], b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      const float2 writing = stage.write_pair(n, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] *= i & 1 ? writing.y : writing.x;
    }
    correct<true>(x, stage, args.prepared.inverse_scale[slot], lane);

    uint32_t rows[kChunk / 16][4];
    round_scaled(rows, x, [](int) { return make_float2(1.0f, 1.0f); });
    store_blocks(args.solved + (slot * block.padded_values + block.first_channel) * kChunk, rows, warp, lane);
    round_scaled(rows, x, [&](int block) {
      const float2 beta = column_pair(stage.beta, block, lane);
      const float2 rstd = column_pair(stage.k_rstd, block, lane);
      return make_float2(-beta.x * rstd.x, -beta.y * rstd.y);
    });
    add_outer(d_state, upstream, stage.q, lane);
    add_outer(d_state, rows, stage.k, lane);
    if (params.stages == 1 && chunk > 0) {
      __syncthreads();
      start_copy(chunk - 1);
    }
  }
  if (args.d_initial != nullptr)
    d_state.store(shape, args.d_initial + block.state_row, block.channel(), lane);
}

}  // namespace

void launch(const DeltaRuleBackwardScanArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  const int64_t items = shape.num_sequences * shape.num_value_heads;
  if (items == 0) return;
  by_scan_shape(shape, items, [&](auto padded, auto warps) {
    constexpr int KP = decltype(padded)::value;
    constexpr int Warps = decltype(warps)::value;
    using Stage = ScanStage<KP, Warps>;
    const int bytes = Stage::bytes(args.in.write_key.data != nullptr);
    const int stages = 2 * bytes <= shared_memory_limit() ? 2 : 1;
    const dim3 grid(static_cast<unsigned>(items),
                    static_cast<unsigned>(delta_rule_padded_value_size(shape.value_size) / Stage::kValues));
    launch_kernel(delta_rule_backward_scan_kernel<KP, Warps>, grid, Warps * 32, stages * bytes,
                  BackwardScanParams{args, stages}, stream);
  });
}

}  // namespace osdn::kernels
