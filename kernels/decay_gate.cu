// The decay gate (docs/ops/decay_gate.md, eq. 1-7): a thread keeps four columns and walks down a block's
// rows; the backward's sums over tokens are partial sums of each block's rows, added in a second pass in a
// fixed order. Memory-bound: 6 bytes a number forward and 8 backward with a bf16 projection. Any architecture
// from sm_80.
#include "kernels/decay_gate.h"

#include <cuda_bf16.h>

#include "base/cuda.h"
#include "kernels/common/warp.cuh"
#include "kernels/detail/column_sum.cuh"

namespace osdn::kernels {
namespace decay_gate_detail {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 4;       // of a thread
constexpr int kForwardRows = 16;  // of a block
constexpr int kBackwardRows = 64;

/// What a thread keeps of its columns, all of one head.
struct Columns {
  int64_t first;
  bool valid;
  float bias[kColumns];
  float rate;
};

template <typename Args>
__device__ Columns columns_of(const Args& args) {
  Columns columns;
  columns.first = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kColumns;
  columns.valid = columns.first < args.width;
  if (!columns.valid) return columns;
  load_row<float, kColumns>(args.bias + columns.first).unpack(columns.bias);
  columns.rate = args.rate[columns.first / args.num_channels];
  return columns;
}

// Not the fast exponential: thousands of these factors multiply up.
__device__ float accurate_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

template <typename T, bool Bounded>
__global__ void __launch_bounds__(kThreads)
    decay_gate_kernel(const __grid_constant__ DecayGateForwardArgs args) {
  const Columns columns = columns_of(args);
  if (!columns.valid) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kForwardRows;
#pragma unroll 4
  for (int64_t row = begin; row < begin + kForwardRows; ++row) {
    if (row >= args.num_tokens) return;
    const int64_t place = row * args.width + columns.first;
    float y[kColumns];
    load_row<T, kColumns>(static_cast<const T*>(args.a) + place).unpack(y);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      y[i] += columns.bias[i];
      y[i] = Bounded ? args.lower_bound * accurate_sigmoid(columns.rate * y[i])  // (eq. 2)
                     : -columns.rate * softplus(y[i]);                           // (eq. 1)
    }
    store_row<float, kColumns>(args.g + place, y, true);
  }
}

/// `sums` [2, blocks, C]: of d_y, then of what adds up to the gradient of A.
template <typename T, bool Bounded>
__global__ void __launch_bounds__(kThreads)
    decay_gate_backward_kernel(const __grid_constant__ DecayGateBackwardArgs args, float* sums) {
  const Columns columns = columns_of(args);
  if (!columns.valid) return;
  float bias_sums[kColumns] = {};
  float rate_sums[kColumns] = {};
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kBackwardRows;
  const int64_t end = min(begin + kBackwardRows, args.num_tokens);
#pragma unroll 4
  for (int64_t row = begin; row < end; ++row) {
    const int64_t place = row * args.width + columns.first;
    float d_y[kColumns];
    float y[kColumns];
    load_row<float, kColumns>(args.d_g + place).unpack(d_y);
    load_row<T, kColumns>(static_cast<const T*>(args.a) + place).unpack(y);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      y[i] += columns.bias[i];
      if constexpr (Bounded) {
        const float z = columns.rate * y[i];
        const float s = accurate_sigmoid(z);
        const float d_z = d_y[i] * args.lower_bound * s * (1.0f - s);
        rate_sums[i] += d_z * z;      // (eq. 6)
        d_y[i] = d_z * columns.rate;  // (eq. 5)
      } else {
        const float d = -d_y[i] * columns.rate;
        rate_sums[i] += d * softplus(y[i]);   // (eq. 4)
        d_y[i] = d * accurate_sigmoid(y[i]);  // (eq. 3)
      }
      bias_sums[i] += d_y[i];  // (eq. 7)
    }
    store_row<T, kColumns>(static_cast<T*>(args.d_a) + place, d_y, true);
  }
  const int64_t place = static_cast<int64_t>(blockIdx.x) * args.width + columns.first;
  store_row<float, kColumns>(sums + place, bias_sums, true);
  store_row<float, kColumns>(sums + gridDim.x * args.width + place, rate_sums, true);
}

template <typename Args>
dim3 grid_of(const Args& args, int rows) {
  OSDN_CUDA_CHECK(args.num_channels % kColumns == 0 ? cudaSuccess : cudaErrorInvalidValue);
  const int64_t width = args.width / kColumns;
  return {static_cast<unsigned>((args.num_tokens + rows - 1) / rows),
          static_cast<unsigned>((width + kThreads - 1) / kThreads)};
}

}  // namespace
}  // namespace decay_gate_detail

size_t workspace_bytes(const DecayGateBackwardArgs& args) {
  namespace detail = decay_gate_detail;
  return 2 * detail::grid_of(args, detail::kBackwardRows).x * static_cast<size_t>(args.width) * sizeof(float);
}

void launch(const DecayGateForwardArgs& args, CUstream_st* stream) {
  namespace detail = decay_gate_detail;
  if (args.num_tokens == 0 || args.width == 0) return;
  const dim3 grid = detail::grid_of(args, detail::kForwardRows);
  const bool bounded = args.lower_bound != 0;
  const auto kernel =
      args.bf16
          ? (bounded ? detail::decay_gate_kernel<__nv_bfloat16, true>
                     : detail::decay_gate_kernel<__nv_bfloat16, false>)
          : (bounded ? detail::decay_gate_kernel<float, true> : detail::decay_gate_kernel<float, false>);
  kernel<<<grid, detail::kThreads, 0, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

void launch(const DecayGateBackwardArgs& args, void* workspace, CUstream_st* stream) {
  namespace detail = decay_gate_detail;
  auto* sums = static_cast<float*>(workspace);  // [2, blocks, C]
  const dim3 grid = detail::grid_of(args, detail::kBackwardRows);
  if (args.num_tokens > 0 && args.width > 0) {
    const bool bounded = args.lower_bound != 0;
    const auto kernel = args.bf16 ? (bounded ? detail::decay_gate_backward_kernel<__nv_bfloat16, true>
                                             : detail::decay_gate_backward_kernel<__nv_bfloat16, false>)
                                  : (bounded ? detail::decay_gate_backward_kernel<float, true>
                                             : detail::decay_gate_backward_kernel<float, false>);
    kernel<<<grid, detail::kThreads, 0, stream>>>(args, sums);
    OSDN_CUDA_CHECK(cudaGetLastError());
  }
  launch_column_sum(sums, grid.x, args.width, args.d_bias, false, stream);
  launch_column_sum(sums + grid.x * args.width, grid.x, args.width, args.d_rate, false, stream);
}

}  // namespace osdn::kernels
