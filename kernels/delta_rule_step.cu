// One token a sequence by the delta rule (docs/ops/delta_rule.md eq. 1-3, 13). A block of 4 warps takes 32
// value channels of a (sequence, value head): 8 lanes a row of the state, 4 channels each, 16 rows at once,
// all of them in registers from the load to the store. S^T k and S^T q come from the same pass over the old
// state; the output adds u <w, q>, so one exchange through shared memory is all. Bound by memory: 8 KV bytes;
// small blocks, eight a multiprocessor, so that some of them load while others compute and store. Any
// architecture from 8.0 on.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "base/cuda.h"
#include "kernels/common/warp.cuh"
#include "kernels/delta_rule_step.h"

namespace osdn::kernels {
namespace {

constexpr int kStepThreads = 128;
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
  float value[kStepColumns];
  float sums[kStepWarps][3];              // a warp's part of |q|^2, |k|^2, <w, q>
  float4 read[kStepWarps][2][kRowLanes];  // a warp's part of S^T k and S^T q
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

/// Rows: of the state a thread holds.
template <typename T, int Rows>
__global__ void __launch_bounds__(kStepThreads, 64 / Rows)
    delta_rule_step_kernel(const __grid_constant__ DeltaRuleStepArgs args) {
  __shared__ StepShared shared;
  const int K = args.key_size;
  const int V = args.value_size;
  const unsigned tiles = static_cast<unsigned>(V + kStepColumns - 1) / kStepColumns;
  const int64_t pair = blockIdx.x / tiles;  // sequence and value head
  const int64_t sequence = blockIdx.x / tiles / static_cast<unsigned>(args.num_value_heads);
  const int head = static_cast<int>(blockIdx.x / tiles % static_cast<unsigned>(args.num_value_heads));
  const int key_head = head / (args.num_value_heads / args.num_key_heads);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int first_column = static_cast<int>(blockIdx.x % tiles) * kStepColumns;
  const int column = first_column + thread % kRowLanes * kLaneChannels;
  const int first_row = thread / kRowLanes;

  const int64_t first_number = (pair * K + first_row) * V + column;  // of the thread's, [S, HV, K, V]
  const int count = column < V ? (K - first_row + kStepRows - 1) / kStepRows : 0;  // rows that are there
  float4 state[Rows];
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    state[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (args.initial_state != nullptr && i < count)
      state[i] = *reinterpret_cast<const float4*>(args.initial_state + first_number + i * kStepRows * V);
  }
  const auto store_state = [&] {
#pragma unroll
    for (int i = 0; i < Rows; ++i)
      if (i < count)
        *reinterpret_cast<float4*>(args.final_state + first_number + i * kStepRows * V) = state[i];
  };
  int64_t token = sequence;  // where all sequences have one, so that no load waits for another
  if (args.num_tokens != args.num_sequences) {
    token = args.offsets[sequence];
    if (args.offsets[sequence + 1] == token) {
      store_state();
      return;
    }
  }

  if (thread < kStepColumns)
    shared.value[thread] = first_column + thread < V
                               ? step_number(step_row<T>(args.v, token, head) + first_column + thread)
                               : 0.0f;
  const int64_t token_head = token * args.num_value_heads + head;
  const float beta = args.beta[token_head];
  float parts[3] = {};
#pragma unroll
  for (int first = 0; first < Rows * kStepRows; first += kStepThreads) {
    const int channel = first + thread;
    float q = 0.0f;
    float k = 0.0f;
    float w = 0.0f;
    float factor = 1.0f;
    if (channel < K) {
      q = step_number(step_row<T>(args.q, token, key_head) + channel);
      k = step_number(step_row<T>(args.k, token, key_head) + channel);
      w = args.write_key.data != nullptr ? step_number(step_row<T>(args.write_key, token, head) + channel)
                                         : k;
      if (args.log_decay != nullptr)
        factor = expf(step_log_decay(args, args.channel_decay ? token_head * K + channel : token_head));
    }
    shared.key[channel] = factor * k;
    shared.query[channel] = factor * q;
    shared.write[channel] = w;
    shared.factor[channel] = factor;
    parts[0] += q * q;
    parts[1] += k * k;
    parts[2] += w * q;
  }
#pragma unroll
  for (float& part : parts) part = warp_sum(part);
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
#pragma unroll 1  // or registers do not suffice for as many blocks
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
    written[i] = beta * (shared.value[thread % kRowLanes * kLaneChannels + i] - k_rstd * by_key[i]);
    out[i] = args.scale * q_rstd * (by_query[i] + w_rstd * sums[2] * written[i]);
  }
  if (thread < kRowLanes && column < V)
    store_row<T, kLaneChannels>(static_cast<T*>(args.o) + token_head * V + column, out, true);
  const float4 update = make_float4(written[0], written[1], written[2], written[3]);
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    const int row = first_row + i * kStepRows;
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
  const bool many_rows = args.key_size > 8 * kStepRows;
  if (args.bf16 && many_rows)
    delta_rule_step_kernel<__nv_bfloat16, 16><<<blocks, kStepThreads, 0, stream>>>(args);
  else if (args.bf16)
    delta_rule_step_kernel<__nv_bfloat16, 8><<<blocks, kStepThreads, 0, stream>>>(args);
  else if (many_rows)
    delta_rule_step_kernel<float, 16><<<blocks, kStepThreads, 0, stream>>>(args);
  else
    delta_rule_step_kernel<float, 8><<<blocks, kStepThreads, 0, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
