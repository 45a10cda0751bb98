// Reverse preconditioner scan (docs/ops/precond_scan.md eq. 6-12): the forward's layout, tokens from last to
// first. No shared memory. Any architecture. The caller guarantees what the forward asks for, and `inside` as
// the forward wrote it.
#include "kernels/detail/precond_scan_chain.cuh"
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
  read_row(token.key, args.key, pair, K, lane);
  read_row(token.through_write, args.through_write, pair, K, lane);
  read_retention(token.retention, args.retention, args.channel_retention, pair, K, lane);
#pragma unroll
  for (int part = 0; part < Parts; ++part) {
    const int channel = part * kWarpSize + lane;
    token.inside[part] = channel < K && args.inside[pair * K + channel];
  }
  return token;
}

template <int Parts>
__global__ void __launch_bounds__(kWarpSize)
    precond_scan_backward_kernel(const __grid_constant__ PrecondScanBackwardArgs args) {
  const PrecondScanShape& shape = args.shape;
  const int K = shape.key_size;
  const ScanChain chain(shape);
  float gradient[Parts];  // of the d that the token in work hands on
  read_row(gradient, args.d_final, chain.index, K, chain.lane);
  BackwardToken<Parts> ahead[kPrefetch];
#pragma unroll
  for (int i = 0; i < kPrefetch; ++i)
    if (chain.end - 1 - i >= chain.begin)
      ahead[i] = load_token<Parts>(args, chain.pair(shape, chain.end - 1 - i), chain.lane);

  for (int64_t block = chain.end - 1; block >= chain.begin; block -= kPrefetch) {
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      const int64_t token = block - i;
      if (token < chain.begin) break;
      const BackwardToken<Parts> now = ahead[i];
      if (token - kPrefetch >= chain.begin)
        ahead[i] = load_token<Parts>(args, chain.pair(shape, token - kPrefetch), chain.lane);
      const int64_t pair = chain.pair(shape, token);
      float lambda[Parts];
      float dot = 0.0f;
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        lambda[part] = now.inside[part] ? gradient[part] : 0.0f;
        dot += lambda[part] * (now.key[part] * now.key[part]);
      }
      const float along = warp_sum(dot);
      const float pull = now.feedback * along;
      if (chain.lane == 0) args.along[pair] = along;
      write_row(args.lambda, lambda, pair, K, chain.lane);
#pragma unroll
      for (int part = 0; part < Parts; ++part)
        gradient[part] = now.through_write[part] - pull * (now.key[part] * now.key[part]) +
                         now.retention[part] * lambda[part];
    }
  }
  write_row(args.d_initial, gradient, chain.index, K, chain.lane);
}

}  // namespace

void launch(const PrecondScanBackwardArgs& args, CUstream_st* stream) {
  launch_by_key_size(args.shape, [&](auto parts, unsigned blocks) {
    precond_scan_backward_kernel<decltype(parts)::value><<<blocks, kWarpSize, 0, stream>>>(args);
  });
}

}  // namespace osdn::kernels
