// y = x W^T (+ b) for at most 4 rows x (docs/ops/linear.md, "Few rows"): a warp takes one row of W and all
// rows of x, 8 loads of 16 bytes a lane in flight. Memory-bound: 2 D_in D_out bytes. No shared memory. Any
// architecture from sm_80. Sums are fp32, in an order that depends on D_in alone.
#include "kernels/linear.h"

#include <cuda_bf16.h>

#include "base/cuda.h"
#include "kernels/common/warp.cuh"

namespace osdn::kernels {
namespace linear_detail {
namespace {

constexpr int kLinearThreads = 128;
constexpr int kLinearWarps = kLinearThreads / kWarpSize;
constexpr int kLinearLoads = 8;  // of a lane at once
constexpr int kVector = static_cast<int>(kLinearWidthMultiple);

using LinearVector = Row<__nv_bfloat16, kVector>;

/// Weights pass once: they need not stay in the cache that x lies in.
__device__ LinearVector load_once(const LinearVector* from) {
  LinearVector vector;
  const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
  vector.pair[0] = bits.x;
  vector.pair[1] = bits.y;
  vector.pair[2] = bits.z;
  vector.pair[3] = bits.w;
  return vector;
}

template <int Rows>
__device__ void add_products(const LinearVector& weight, const LinearVector* x, int64_t x_stride,
                             float (&sums)[Rows]) {
  float w[kVector];
  weight.unpack(w);
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
    float values[kVector];
    x[row * x_stride].unpack(values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[row] = fmaf(w[i], values[i], sums[row]);
  }
}

template <int Rows>
__global__ void __launch_bounds__(kLinearThreads) few_rows_kernel(const __grid_constant__ LinearArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t output = static_cast<int64_t>(blockIdx.x) * kLinearWarps + threadIdx.x / kWarpSize;
  if (output >= args.num_outputs) return;
  const int64_t vectors = args.width / kVector;
  const int64_t x_stride = args.x_stride / kVector;
  const auto* w = static_cast<const LinearVector*>(args.weight) + output * vectors;
  const auto* x = static_cast<const LinearVector*>(args.x);
  float sums[Rows] = {};
  int64_t at = lane;
  for (; at + kWarpSize * (kLinearLoads - 1) < vectors; at += kWarpSize * kLinearLoads) {
    LinearVector weights[kLinearLoads];
#pragma unroll
    for (int i = 0; i < kLinearLoads; ++i) weights[i] = load_once(w + at + i * kWarpSize);
#pragma unroll
    for (int i = 0; i < kLinearLoads; ++i)
      add_products<Rows>(weights[i], x + at + i * kWarpSize, x_stride, sums);
  }
  for (; at < vectors; at += kWarpSize) add_products<Rows>(load_once(w + at), x + at, x_stride, sums);

  float bias = 0.0f;
  if (args.bias != nullptr)
    bias = args.bias_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(args.bias)[output])
                          : static_cast<const float*>(args.bias)[output];
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
    const float sum = warp_sum(sums[row]) + bias;
    if (lane == 0)
      static_cast<__nv_bfloat16*>(args.y)[row * args.num_outputs + output] = __float2bfloat16(sum);
  }
}

}  // namespace
}  // namespace linear_detail

void launch(const LinearArgs& args, CUstream_st* stream) {
  using namespace linear_detail;
  if (args.num_outputs == 0) return;
  const auto blocks = static_cast<unsigned>((args.num_outputs + kLinearWarps - 1) / kLinearWarps);
  switch (args.num_rows) {
    case 1:
      few_rows_kernel<1><<<blocks, kLinearThreads, 0, stream>>>(args);
      break;
    case 2:
      few_rows_kernel<2><<<blocks, kLinearThreads, 0, stream>>>(args);
      break;
    case 3:
      few_rows_kernel<3><<<blocks, kLinearThreads, 0, stream>>>(args);
      break;
    default:
      few_rows_kernel<4><<<blocks, kLinearThreads, 0, stream>>>(args);
      break;
  }
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
