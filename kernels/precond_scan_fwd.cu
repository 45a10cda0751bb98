// Forward preconditioner scan (docs/ops/precond_scan.md eq. 1-5): one warp a (sequence, value head), Parts =
// K / 32 channels a lane, one warp a block so that the chains spread over all multiprocessors. No shared
// memory. Any architecture. The caller guarantees K <= 32 * Parts and rows within [0, N).
#include "kernels/detail/precond_scan_chain.cuh"
#include "kernels/detail/precond_scan_launch.h"
#include "kernels/precond_scan.h"

namespace osdn::kernels {
namespace {

template <int Parts>
struct ForwardToken {
  float key[Parts];
  float retention[Parts];
  float gain;
  float feedback;
};

template <int Parts>
__device__ ForwardToken<Parts> load_token(const PrecondScanForwardArgs& args, int64_t pair, int lane) {
  ForwardToken<Parts> token;
  const int K = args.shape.key_size;
  token.gain = args.gain[pair];
  token.feedback = args.feedback[pair];
  read_row(token.key, args.key, pair, K, lane);
  read_retention(token.retention, args.retention, args.channel_retention, pair, K, lane);
  return token;
}

template <int Parts>
__global__ void __launch_bounds__(kWarpSize)
    precond_scan_forward_kernel(const __grid_constant__ PrecondScanForwardArgs args) {
  const PrecondScanShape& shape = args.shape;
  const int K = shape.key_size;
  const ScanChain chain(shape);
  float d[Parts];
  read_row(d, args.initial, chain.index, K, chain.lane);
  ForwardToken<Parts> ahead[kPrefetch];
#pragma unroll
  for (int i = 0; i < kPrefetch; ++i)
    if (chain.begin + i < chain.end)
      ahead[i] = load_token<Parts>(args, chain.pair(shape, chain.begin + i), chain.lane);

  for (int64_t block = chain.begin; block < chain.end; block += kPrefetch) {
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      const int64_t token = block + i;
      if (token >= chain.end) break;
      const ForwardToken<Parts> now = ahead[i];
      if (token + kPrefetch < chain.end)
        ahead[i] = load_token<Parts>(args, chain.pair(shape, token + kPrefetch), chain.lane);
      const int64_t pair = chain.pair(shape, token);
      float dot = 0.0f;
#pragma unroll
      for (int part = 0; part < Parts; ++part) dot += d[part] * (now.key[part] * now.key[part]);
      const float s = warp_sum(dot);
      const float step = now.gain - now.feedback * s;
      if (chain.lane == 0) args.s[pair] = s;
      write_row(args.d, d, pair, K, chain.lane);
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        const int channel = part * kWarpSize + chain.lane;
        const float kept =
            args.anchored ? 1.0f + now.retention[part] * (d[part] - 1.0f) : now.retention[part] * d[part];
        const float proposed = kept + step * (now.key[part] * now.key[part]);
        if (channel < K)
          args.inside[pair * K + channel] = proposed >= args.box_min && proposed <= args.box_max;
        d[part] = fminf(fmaxf(proposed, args.box_min), args.box_max);
      }
    }
  }
  write_row(args.final_d, d, chain.index, K, chain.lane);
}

}  // namespace

void launch(const PrecondScanForwardArgs& args, CUstream_st* stream) {
  launch_by_key_size(args.shape, [&](auto parts, unsigned blocks) {
    precond_scan_forward_kernel<decltype(parts)::value><<<blocks, kWarpSize, 0, stream>>>(args);
  });
}

}  // namespace osdn::kernels
