// AdamW (docs/ops/adamw.md eq. 1-4): a thread takes four neighbouring elements, grid-stride, 16-byte
// accesses; memory-bound at 28 bytes read and written an element (30 with the bf16 copy). Any architecture.
// The caller guarantees that all pointers hold num_elements, are aligned to 16 bytes (the copy to 8) and that
// num_elements and decay_block are multiples of 4.
#include <cuda_bf16.h>

#include <algorithm>

#include "base/cuda.h"
#include "kernels/adamw.h"
#include "kernels/common/warp.cuh"

namespace osdn::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 4;  // of a thread
constexpr int64_t kMaxBlocks = 132 * 16;

__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ AdamWArgs args) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kElements;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
       i < args.num_elements; i += stride) {
    float gradients[kElements];
    float masters[kElements];
    float m[kElements];
    float v[kElements];
    load_row<float, kElements>(args.gradients + i).unpack(gradients);
    load_row<float, kElements>(args.masters + i).unpack(masters);
    load_row<float, kElements>(args.exp_avgs + i).unpack(m);
    load_row<float, kElements>(args.exp_avg_sqs + i).unpack(v);
    const float decay =
        args.decay_blocks[i / args.decay_block] ? 1.0f - args.learning_rate * args.weight_decay : 1.0f;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const float g = gradients[e] * args.gradient_scale;
      m[e] = args.beta1 * m[e] + (1.0f - args.beta1) * g;
      v[e] = args.beta2 * v[e] + (1.0f - args.beta2) * g * g;
      const float denominator = sqrtf(v[e]) * args.inverse_sqrt_correction2 + args.eps;
      masters[e] = masters[e] * decay - args.learning_rate * args.inverse_correction1 * m[e] / denominator;
    }
    store_row<float, kElements>(args.exp_avgs + i, m, true);
    store_row<float, kElements>(args.exp_avg_sqs + i, v, true);
    store_row<float, kElements>(args.masters + i, masters, true);
    if (args.compute_copy != nullptr)
      store_row<__nv_bfloat16, kElements>(static_cast<__nv_bfloat16*>(args.compute_copy) + i, masters, true);
  }
}

}  // namespace

void launch(const AdamWArgs& args, CUstream_st* stream) {
  constexpr int64_t kPerBlock = int64_t{kThreads} * kElements;
  const bool fits = args.num_elements % kElements == 0 && args.decay_block % kElements == 0;
  OSDN_CUDA_CHECK(fits ? cudaSuccess : cudaErrorInvalidValue);
  const int64_t blocks = std::clamp<int64_t>((args.num_elements + kPerBlock - 1) / kPerBlock, 1, kMaxBlocks);
  adamw_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
