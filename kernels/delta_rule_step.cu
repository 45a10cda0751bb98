// One token a sequence by the delta rule (docs/ops/delta_rule.md eq. 1-3, 13). A block of 8 warps takes 32
// value channels of a (sequence, value head): 8 lanes a row of the state, 4 channels each, 32 rows at once,
// all of them in registers from the load to the store. S^T k and S^T q come from the same pass over the old
// state; the output adds u <w, q>, so one exchange through shared memory (6 KB) is all. Bound by memory: 8 KV
// bytes. Any architecture from 8.0 on.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "base/cuda.h"
#include "kernels/common/warp.cuh"
#include "kernels/delta_rule_step.h"

namespace osdn::kernels {
namespace {

constexpr int kStepThreads = 256;
constexpr int kStepWarps = kStepThreads / kWarpSize;
constexpr int kLaneChannels = 4;  // value channels of a lane
constexpr int kRowLanes = 8;      // lanes that share a row of the state
constexpr int kStepColumns = kRowLanes * kLaneChannels;
constexpr int kStepRows = kStepThreads / kRowLanes;  // rows of the state at once
constexpr float kStepUnitEpsilon = 1e-6f;            // inside the root of a norm

struct StepShared {
  float key[kDeltaRuleStepMaxKeySize];     // exp(g) o k, k as given
  float query[kDeltaRuleStepMaxKeySize];   // exp(g) o q, q as given
  float write[kDeltaRuleStepMaxKeySize];   // write key as given
  float factor[kDeltaRuleStepMaxKeySize];  // exp(g)
  float sums[kStepWarps][3];               // a warp's part of |q|^2, |k|^2, <w, q>
  float4 read[kStepWarps][2][kRowLanes];   // a warp's part of S^T k and S^T q
};

__device__ float step_number(const __nv_bfloat16* x) { return __bfloat162float(*x); }
__device__ float step_number(const float* x) { return *x; }

__device__ float step_log_decay(const DeltaRuleStepArgs& args, int64_t at) {
  return args.bf16_log_decay ? step_number(static_cast<const __nv_bfloat16*>(args.log_decay) + at)
                             : step_number(static_cast<const float*>(args.log_decay) + at);
}

template <typename T>
__device__ const T* step_row(const DeltaRuleStepRows& rows, int64_t token, int head) {
  return static_cast<const T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

__device__ void add_scaled(float4& sum, float factor, const float4& x) {
  sum.x = fmaf(factor, x.x, sum.x);
  sum.y = fmaf(factor, x.y, sum.y);
  sum.z = fmaf(factor, x.z, sum.z);
  sum.w = fmaf(factor, x.w, sum.w);
}

/// Sum over the warp's lanes that hold the same channels.
__device__ float4 sum_over_rows(float4 x) {
#pragma unroll
  for (int distance = kRowLanes; distance < kWarpSize; distance *= 2) {
    x.x += __shfl_xor_sync(0xffffffffu, x.x, distance);
    x.y += __shfl_xor_sync(0xffffffffu, x.y, distance);
    x.z += __shfl_xor_sync(0xffffffffu, x.z, distance);
    x.w += __shfl_xor_sync(0xffffffffu, x.w, distance);
  }
  return x;
}

template <typename T, int Rows>
__global__ void __launch_bounds__(kStepThreads)
    delta_rule_step_kernel(const __grid_constant__ DeltaRuleStepArgs args) {
  __shared__ StepShared shared;
  const int K = args.key_size;
  const int V = args.value_size;
  const int tiles = (V + kStepColumns - 1) / kStepColumns;
  const int64_t pair = blockIdx.x / tiles;  // sequence and value head
  const int64_t sequence = pair / args.num_value_heads;
  const int head = static_cast<int>(pair % args.num_value_heads);
  const int key_head = head / (args.num_value_heads / args.num_key_heads);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int column = static_cast<int>(blockIdx.x % tiles) * kStepColumns + thread % kRowLanes * kLaneChannels;
  const int first_row = thread / kRowLanes;

  float4 state[Rows];
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    const int row = first_row + i * kStepRows;
    state[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (args.initial_state != nullptr && row < K && column < V)
      state[i] = *reinterpret_cast<const float4*>(args.initial_state + (pair * K + row) * V + column);
  }
  const auto store_state = [&] {
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      const int row = first_row + i * kStepRows;
      if (row < K && column < V)
        *reinterpret_cast<float4*>(args.final_state + (pair * K + row) * V + column) = state[i];
    }
  };
  const int64_t token = args.offsets[sequence];
  if (args.offsets[sequence + 1] == token) {
    store_state();
    return;
  }

  float value[kLaneChannels] = {};
  if (column < V) {
    const T* source = step_row<T>(args.v, token, head) + column;
#pragma unroll
    for (int i = 0; i < kLaneChannels; ++i) value[i] = step_number(source + i);
  }
  const int64_t token_head = token * args.num_value_heads + head;
  const float beta = args.beta[token_head];
  float q = 0.0f;
  float k = 0.0f;
  float w = 0.0f;
  if (thread < K) {
    q = step_number(step_row<T>(args.q, token, key_head) + thread);
    k = step_number(step_row<T>(args.k, token, key_head) + thread);
    w = args.write_key.data != nullptr ? step_number(step_row<T>(args.write_key, token, head) + thread) : k;
    const float factor =
        args.log_decay != nullptr
            ? expf(step_log_decay(args, args.channel_decay ? token_head * K + thread : token_head))
            : 1.0f;
    shared.key[thread] = factor * k;
    shared.query[thread] = factor * q;
    shared.write[thread] = w;
    shared.factor[thread] = factor;
  }
  const float parts[3] = {warp_sum(q * q), warp_sum(k * k), warp_sum(w * q)};
  if (thread % kWarpSize == 0) {
#pragma unroll
    for (int i = 0; i < 3; ++i) shared.sums[warp][i] = parts[i];
  }
  __syncthreads();

  float4 read_key = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float4 read_query = read_key;
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    const int row = first_row + i * kStepRows;
    if (row >= K) break;
    add_scaled(read_key, shared.key[row], state[i]);
    add_scaled(read_query, shared.query[row], state[i]);
  }
  read_key = sum_over_rows(read_key);
  read_query = sum_over_rows(read_query);
  if (thread % kWarpSize < kRowLanes) {
    shared.read[warp][0][thread % kRowLanes] = read_key;
    shared.read[warp][1][thread % kRowLanes] = read_query;
  }
  __syncthreads();

  float sums[3] = {};
  read_key = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  read_query = read_key;
#pragma unroll
  for (int from = 0; from < kStepWarps; ++from) {
#pragma unroll
    for (int i = 0; i < 3; ++i) sums[i] += shared.sums[from][i];
    add_scaled(read_key, 1.0f, shared.read[from][0][thread % kRowLanes]);
    add_scaled(read_query, 1.0f, shared.read[from][1][thread % kRowLanes]);
  }
  const float q_rstd = args.normalize ? 1.0f / sqrtf(sums[0] + kStepUnitEpsilon) : 1.0f;
  const float k_rstd = args.normalize ? 1.0f / sqrtf(sums[1] + kStepUnitEpsilon) : 1.0f;
  const float w_rstd = args.write_key.data != nullptr ? 1.0f : k_rstd;
  const float by_key[kLaneChannels] = {read_key.x, read_key.y, read_key.z, read_key.w};
  const float by_query[kLaneChannels] = {read_query.x, read_query.y, read_query.z, read_query.w};
  float written[kLaneChannels];
  float out[kLaneChannels];
#pragma unroll
  for (int i = 0; i < kLaneChannels; ++i) {
    written[i] = beta * (value[i] - k_rstd * by_key[i]);
    out[i] = args.scale * q_rstd * (by_query[i] + w_rstd * sums[2] * written[i]);
  }
  if (thread < kRowLanes && column < V)
    store_row<T, kLaneChannels>(static_cast<T*>(args.o) + token_head * V + column, out, true);
  const float4 update = make_float4(written[0], written[1], written[2], written[3]);
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    const int row = first_row + i * kStepRows;
    if (row >= K) break;
    const float factor = shared.factor[row];
    state[i] =
        make_float4(factor * state[i].x, factor * state[i].y, factor * state[i].z, factor * state[i].w);
    add_scaled(state[i], w_rstd * shared.write[row], update);
  }
  store_state();
}

}  // namespace

void launch(const DeltaRuleStepArgs& args, CUstream_st* stream) {
  const int64_t tiles = (args.value_size + kStepColumns - 1) / kStepColumns;
  const auto blocks = static_cast<unsigned>(args.num_sequences * args.num_value_heads * tiles);
  if (blocks == 0) return;
  const bool many_rows = args.key_size > 4 * kStepRows;
  if (args.bf16 && many_rows)
    delta_rule_step_kernel<__nv_bfloat16, 8><<<blocks, kStepThreads, 0, stream>>>(args);
  else if (args.bf16)
    delta_rule_step_kernel<__nv_bfloat16, 4><<<blocks, kStepThreads, 0, stream>>>(args);
  else if (many_rows)
    delta_rule_step_kernel<float, 8><<<blocks, kStepThreads, 0, stream>>>(args);
  else
    delta_rule_step_kernel<float, 4><<<blocks, kStepThreads, 0, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
