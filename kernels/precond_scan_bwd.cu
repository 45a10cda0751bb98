// Reverse preconditioner scan (docs/ops/precond_scan.md eq. 6-12): the forward's layout, tokens from last to
// first. No shared memory. Any architecture. The caller guarantees what the forward asks for, and `inside` as
// the forward wrote it.
#include "base/cuda.h"
#include "kernels/common/warp_chain.cuh"
#include "kernels/detail/precond_scan_launch.h"
#include "kernels/precond_scan.h"

namespace osdn::kernels {
namespace {

template <int Parts>
struct BackwardToken {
  float key[Parts];
  float retention[Parts];
  float through_write[Parts];
  bool inside[Parts];
  float feedback;
};

template <int Parts>
__device__ BackwardToken<Parts> load_token(const PrecondScanBackwardArgs& args, int64_t pair, int lane) {
  BackwardToken<Parts> token;
  const int K = args.shape.key_size;
  token.feedback = args.feedback[pair];
  const float shared_retention = args.retention && !args.channel_retention ? args.retention[pair] : 1.0f;
#pragma unroll
  for (int part = 0; part < Parts; ++part) {
    const int channel = part * kWarpSize + lane;
    const bool valid = channel < K;
    token.key[part] = valid ? args.key[pair * K + channel] : 0.0f;
    token.through_write[part] = valid ? args.through_write[pair * K + channel] : 0.0f;
    token.inside[part] = valid && args.inside[pair * K + channel];
    token.retention[part] =
        args.channel_retention && valid ? args.retention[pair * K + channel] : shared_retention;
  }
  return token;
}

template <int Parts>
__global__ void __launch_bounds__(kWarpSize)
    precond_scan_backward_kernel(const __grid_constant__ PrecondScanBackwardArgs args) {
  const PrecondScanShape& shape = args.shape;
  const int K = shape.key_size;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t chain = blockIdx.x;  // sequence * HV + head
  const int64_t sequence = chain / shape.num_heads;
  const int64_t head = chain % shape.num_heads;
  const int64_t begin = shape.offsets[sequence];
  const int64_t end = shape.offsets[sequence + 1];
  const auto pair_of = [&](int64_t token) { return shape.rows[token] * shape.num_heads + head; };

  float gradient[Parts];  // of the d that the token in work hands on
#pragma unroll
  for (int part = 0; part < Parts; ++part) {
    const int channel = part * kWarpSize + lane;
    gradient[part] = channel < K ? args.d_final[chain * K + channel] : 0.0f;
  }
  BackwardToken<Parts> ahead[kPrefetch];
#pragma unroll
  for (int i = 0; i < kPrefetch; ++i)
    if (end - 1 - i >= begin) ahead[i] = load_token<Parts>(args, pair_of(end - 1 - i), lane);

  for (int64_t block = end - 1; block >= begin; block -= kPrefetch) {
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      const int64_t token = block - i;
      if (token < begin) break;
      const BackwardToken<Parts> now = ahead[i];
      if (token - kPrefetch >= begin) ahead[i] = load_token<Parts>(args, pair_of(token - kPrefetch), lane);
      const int64_t pair = pair_of(token);
      float lambda[Parts];
      float dot = 0.0f;
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        lambda[part] = now.inside[part] ? gradient[part] : 0.0f;
        dot += lambda[part] * (now.key[part] * now.key[part]);
      }
      const float along = warp_sum(dot);
      const float pull = now.feedback * along;
      if (lane == 0) args.along[pair] = along;
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        const int channel = part * kWarpSize + lane;
        if (channel < K) args.lambda[pair * K + channel] = lambda[part];
        gradient[part] = now.through_write[part] - pull * (now.key[part] * now.key[part]) +
                         now.retention[part] * lambda[part];
      }
    }
  }
#pragma unroll
  for (int part = 0; part < Parts; ++part) {
    const int channel = part * kWarpSize + lane;
    if (channel < K) args.d_initial[chain * K + channel] = gradient[part];
  }
}

}  // namespace

void launch(const PrecondScanBackwardArgs& args, CUstream_st* stream) {
  launch_by_key_size(args.shape, [&](auto parts, unsigned blocks) {
    precond_scan_backward_kernel<decltype(parts)::value><<<blocks, kWarpSize, 0, stream>>>(args);
  });
}

}  // namespace osdn::kernels
