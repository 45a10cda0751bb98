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

/// E = R - Y (beta R), transposed: `x` holds R and then E.
template <class Stage>
__device__ void correct(float (&x)[kChunk / 8][4], const Stage& stage, float inverse_scale, int lane) {
  uint32_t scaled[kChunk / 16][4];  // beta R in fp16
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
    for (int k = 0; k <= pair; ++k) {  // Y is strictly lower
      for (const TriangleTile& part : {stage.inverse, stage.remainder}) {
        uint32_t b[4];
        load_b_of_rows(b, part, pair * 16, k * 16, lane);
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

template <int KP, int Warps, Decay kDecay>
__global__ void __launch_bounds__(Warps * 32, 1)
    delta_rule_forward_kernel(const __grid_constant__ ForwardParams params) {
  using Stage = ScanStage<KP, Warps, kDecay>;
  extern __shared__ __align__(128) unsigned char memory[];
  const DeltaRuleForwardArgs& args = params.args;
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
    stage_of(chunk).copy_async(args.in, args.prepared, args.in.v, args.chunk_decay,
                               ChunkPlace(shape, sequence, chunk, head), first_channel);
  };

  if (chunks > 0) start_copy(0);
  StateRows<KP> state;
  state.load(shape, args.initial_state == nullptr ? nullptr : args.initial_state + state_row,
             first_channel + warp * kWarpChannels, lane);

  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    copy_async_wait<0>();
    __syncthreads();
    if (params.stages == 2 && chunk + 1 < chunks) start_copy(chunk + 1);
    const Stage stage = stage_of(chunk);
    const ChunkPlace place(shape, sequence, chunk, head);
    const int64_t slot = place.slot(shape);

    uint32_t rounded[KP / 16][4];
    state.round(rounded);
    if (args.states != nullptr)
      store_blocks(args.states + (slot * padded_values + first_channel) * KP, rounded, warp, lane);
    float x[kChunk / 8][4] = {};
    times_rows<KP>(x, rounded, stage.k, lane);
    float o[kChunk / 8][4] = {};
    times_rows<KP>(o, rounded, stage.q, lane);
    if constexpr (kDecay == Decay::kScalar)
      scale_columns(o, [&](int block) { return stage.from_start_pair(block, lane); });
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
    correct(x, stage, args.prepared.inverse_scale[slot], lane);

    uint32_t rows[kChunk / 16][4];
    if (args.error != nullptr) {
      round_scaled(rows, x, [](int) { return make_float2(1.0f, 1.0f); });
      store_blocks(args.error + (slot * padded_values + first_channel) * kChunk, rows, warp, lane);
    }
    round_scaled(rows, x, [&](int block) {
      const float2 beta = column_pair(stage.beta, block, lane);
      const float2 writing = stage.write_pair(block, lane);
      return make_float2(beta.x * writing.x, beta.y * writing.y);
    });
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {
#pragma unroll
      for (int k = 0; k <= pair; ++k) {
        uint32_t b[4];
        load_b_of_rows(b, stage.pairs, pair * 16, k * 16, lane);
        mma_bf16(o[2 * pair], rows[k], b[0], b[1]);
        mma_bf16(o[2 * pair + 1], rows[k], b[2], b[3]);
      }
    }
    if constexpr (kDecay != Decay::kNone) state.decay(stage, lane);
    if constexpr (kDecay == Decay::kScalar) {
      round_scaled(rows, x, [&](int block) {
        const float2 beta = column_pair(stage.beta, block, lane);
        const float2 writing = stage.write_pair(block, lane);
        const float2 to_end = stage.to_end_pair(block, lane);
        return make_float2(beta.x * writing.x * to_end.x, beta.y * writing.y * to_end.y);
      });
    }
    add_outer(state, rows, stage.w, lane);
    store_output(o, stage, args, place, first_channel, warp, lane);
    if (params.stages == 1 && chunk + 1 < chunks) {
      __syncthreads();
      start_copy(chunk + 1);
    }
  }
  state.store(shape, args.final_state + state_row, first_channel + warp * kWarpChannels, lane);
}

}  // namespace

void launch(const DeltaRuleForwardArgs& args, CUstream_st* stream) {
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
    launch_kernel(delta_rule_forward_kernel<KP, Warps, kDecay>, grid, Warps * 32, stages * bytes,
                  ForwardParams{args, stages}, stream);
  });
}

}  // namespace osdn::kernels
