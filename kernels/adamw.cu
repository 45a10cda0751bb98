// AdamW (docs/ops/adamw.md eq. 1-4): one thread an element, grid-stride, coalesced 4-byte accesses;
// memory-bound at 28 bytes read and written an element (30 with the bf16 copy). Any architecture. The caller
// guarantees that all pointers hold num_elements and that num_elements is a multiple of decay_block.
#include <cuda_bf16.h>

#include <algorithm>

#include "base/cuda.h"
#include "kernels/adamw.h"

namespace osdn::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 16;

__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ AdamWArgs args) {
  auto* copy = static_cast<__nv_bfloat16*>(args.compute_copy);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < args.num_elements;
       i += stride) {
    const float decay =
        args.decay_blocks[i / args.decay_block] ? 1.0f - args.learning_rate * args.weight_decay : 1.0f;
    const float g = args.gradients[i] * args.gradient_scale;
    const float m = args.beta1 * args.exp_avgs[i] + (1.0f - args.beta1) * g;
    const float v = args.beta2 * args.exp_avg_sqs[i] + (1.0f - args.beta2) * g * g;
    args.exp_avgs[i] = m;
    args.exp_avg_sqs[i] = v;
    const float denominator = sqrtf(v) * args.inverse_sqrt_correction2 + args.eps;
    const float master =
        args.masters[i] * decay - args.learning_rate * args.inverse_correction1 * m / denominator;
    args.masters[i] = master;
    if (copy) copy[i] = __float2bfloat16(master);
  }
}

}  // namespace

void launch(const AdamWArgs& args, CUstream_st* stream) {
  const int64_t blocks = std::clamp<int64_t>((args.num_elements + kThreads - 1) / kThreads, 1, kMaxBlocks);
  adamw_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
