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

/// F = dU - Y^T (beta dU), transposed: `x` holds dU and then F.
template <class Stage>
__device__ void correct_transposed(float (&x)[kChunk / 8][4], const Stage& stage, float inverse_scale,
                                   int lane) {
  uint32_t scaled[kChunk / 16][4];  // beta dU in fp16
  float largest = 0.0f;
  float2 betas[kChunk / 8];
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    betas[n] = column_pair(stage.beta, n, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(x[n][i] * (i & 1 ? betas[n].y : betas[n].x)));
  }
  const float scale = half_scale(largest);
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = 2 * k + half;
      const float2 beta = make_float2(betas[n].x * scale, betas[n].y * scale);
      scaled[k][2 * half] = pack_fp16(x[n][0] * beta.x, x[n][1] * beta.y);
      scaled[k][2 * half + 1] = pack_fp16(x[n][2] * beta.x, x[n][3] * beta.y);
    }
  }
  const float back = inverse_scale / scale;
#pragma unroll
  for (int pair = 0; pair < kChunk / 16; ++pair) {
    float low[4] = {};
    float high[4] = {};
#pragma unroll
    for (int k = pair; k < kChunk / 16; ++k) {
      for (const TriangleTile& part : {stage.inverse, stage.remainder}) {
        uint32_t b[4];
        load_b_of_columns(b, part, pair * 16, k * 16, lane);
        mma_fp16(low, scaled[k], b[0], b[1]);
        mma_fp16(high, scaled[k], b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * pair][i] -= low[i] * back;
      x[2 * pair + 1][i] -= high[i] * back;
    }
  }
}

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

template <int KP, int Warps, Decay kDecay>
__global__ void __launch_bounds__(Warps * 32, 1)
    delta_rule_backward_scan_kernel(const __grid_constant__ BackwardScanParams params) {
  using Stage = ScanStage<KP, Warps, kDecay>;
  extern __shared__ __align__(128) unsigned char memory[];
  const DeltaRuleBackwardScanArgs& args = params.args;
  const DeltaRuleShape& shape = args.in.shape;
  const int head = static_cast<int>(blockIdx.x % shape.num_value_heads);
  const int64_t sequence = shape.order[blockIdx.x / shape.num_value_heads];
  const int first_channel = static_cast<int>(blockIdx.y) * Stage::kValues;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool own_write_key = args.in.write_key.data != nullptr;
  const int padded_values = delta_rule_padded_value_size(shape.value_size);
  const int64_t chunks = shape.chunk_offsets[sequence + 1] - shape.chunk_offsets[sequence];
  const int64_t state_row = (sequence * shape.num_value_heads + head) * shape.key_size * shape.value_size;
  const uint32_t base = shared_address(memory);
  const auto stage_of = [&](int64_t chunk) {
    return Stage(base + static_cast<int>(chunk % params.stages) * Stage::bytes(own_write_key), own_write_key);
  };
  const auto start_copy = [&](int64_t chunk) {
    stage_of(chunk).copy_async(args.in, args.prepared, args.d_o, args.chunk_decay,
                               ChunkPlace(shape, sequence, chunk, head), first_channel);
  };

  if (chunks > 0) start_copy(chunks - 1);
  StateRows<KP> d_state;
  d_state.load(shape, args.d_final == nullptr ? nullptr : args.d_final + state_row,
               first_channel + warp * kWarpChannels, lane);

  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    copy_async_wait<0>();
    __syncthreads();
    if (params.stages == 2 && chunk > 0) start_copy(chunk - 1);
    const Stage stage = stage_of(chunk);
    const ChunkPlace place(shape, sequence, chunk, head);
    const int64_t slot = place.slot(shape);

    float x[kChunk / 8][4] = {};
    {
      uint32_t rounded[KP / 16][4];
      d_state.round(rounded);
      store_blocks(args.d_states + (slot * padded_values + first_channel) * KP, rounded, warp, lane);
      times_rows<KP>(x, rounded, stage.w, lane);
    }
    if constexpr (kDecay == Decay::kScalar)
      scale_columns(x, [&](int block) { return stage.to_end_pair(block, lane); });
    uint32_t upstream[kChunk / 16][4];
    load_upstream(
        upstream, stage,
        [&](int block) {
          const float2 rstd = column_pair(stage.q_rstd, block, lane);
          return make_float2(rstd.x * args.in.scale, rstd.y * args.in.scale);
        },
        warp, lane);
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
    correct_transposed(x, stage, args.prepared.inverse_scale[slot], lane);

    uint32_t rows[kChunk / 16][4];
    round_scaled(rows, x, [](int) { return make_float2(1.0f, 1.0f); });
    store_blocks(args.solved + (slot * padded_values + first_channel) * kChunk, rows, warp, lane);
    round_scaled(rows, x, [&](int block) {
      const float2 beta = column_pair(stage.beta, block, lane);
      const float2 rstd = column_pair(stage.k_rstd, block, lane);
      const float2 from_start = stage.from_start_pair(block, lane);
      return make_float2(-beta.x * rstd.x * from_start.x, -beta.y * rstd.y * from_start.y);
    });
    if constexpr (kDecay != Decay::kNone) d_state.decay(stage, lane);
    if constexpr (kDecay == Decay::kScalar) {
      load_upstream(
          upstream, stage,
          [&](int block) {
            const float2 rstd = column_pair(stage.q_rstd, block, lane);
            const float2 from_start = stage.from_start_pair(block, lane);
            return make_float2(rstd.x * args.in.scale * from_start.x, rstd.y * args.in.scale * from_start.y);
          },
          warp, lane);
    }
    add_outer(d_state, upstream, stage.q, lane);
    add_outer(d_state, rows, stage.k, lane);
    if (params.stages == 1 && chunk > 0) {
      __syncthreads();
      start_copy(chunk - 1);
    }
  }
  if (args.d_initial != nullptr)
    d_state.store(shape, args.d_initial + state_row, first_channel + warp * kWarpChannels, lane);
}

}  // namespace

void launch(const DeltaRuleBackwardScanArgs& args, CUstream_st* stream) {
  const DeltaRuleShape& shape = args.in.shape;
  const int64_t items = shape.num_sequences * shape.num_value_heads;
  if (items == 0) return;
  by_scan_shape(args.in, args.chunk_decay, [&](auto padded, auto warps, auto decay) {
    constexpr int KP = decltype(padded)::value;
    constexpr int Warps = decltype(warps)::value;
    constexpr Decay kDecay = decltype(decay)::value;
    using Stage = ScanStage<KP, Warps, kDecay>;
    const int bytes = Stage::bytes(args.in.write_key.data != nullptr);
    const int stages = 2 * bytes <= shared_memory_limit() ? 2 : 1;
    const dim3 grid(static_cast<unsigned>(items),
                    static_cast<unsigned>(delta_rule_padded_value_size(shape.value_size) / Stage::kValues));
    launch_kernel(delta_rule_backward_scan_kernel<KP, Warps, kDecay>, grid, Warps * 32, stages * bytes,
                  BackwardScanParams{args, stages}, stream);
  });
}

}  // namespace osdn::kernels
