// Sum of squares in float64 (docs/ops/adamw.md): a grid of fixed size goes over the range with its stride,
// each block leaves one sum, and a block of a second kernel adds them in order. Memory-bound: 4 bytes an
// element. Any architecture.
#include "kernels/square_sum.h"

#include "base/cuda.h"
#include "kernels/common/warp.cuh"

namespace osdn::kernels {
namespace square_sum_detail {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;

/// Sum over the block, in its first thread.
__device__ double block_sum(double value) {
  __shared__ double sums[kThreads / kWarpSize];
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  if (threadIdx.x % kWarpSize == 0) sums[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = 0;
  for (const double sum : sums) value += sum;
  return value;
}

__global__ void __launch_bounds__(kThreads) partial_kernel(const __grid_constant__ SquareSumArgs args) {
  constexpr int64_t kStride = kSquareSumPartials * kThreads * kVector;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector; i < args.num_values;
       i += kStride) {
    float values[kVector];
    load_row<float, kVector>(args.values + i).unpack(values);
    for (const float value : values) sum += static_cast<double>(value) * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) args.partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) total_kernel(const __grid_constant__ SquareSumArgs args) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < kSquareSumPartials; i += kThreads) sum += args.partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *args.sum = sum;
}

}  // namespace
}  // namespace square_sum_detail

void launch(const SquareSumArgs& args, CUstream_st* stream) {
  namespace detail = square_sum_detail;
  OSDN_CUDA_CHECK(args.num_values % detail::kVector == 0 ? cudaSuccess : cudaErrorInvalidValue);
  detail::partial_kernel<<<kSquareSumPartials, detail::kThreads, 0, stream>>>(args);
  detail::total_kernel<<<1, detail::kThreads, 0, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
