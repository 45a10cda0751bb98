// Forward preconditioner scan (docs/ops/precond_scan.md eq. 1-5): one warp a (sequence, value head), Parts =
// K / 32 channels a lane, one warp a block so that the chains spread over all multiprocessors. No shared
// memory. Any architecture. The caller guarantees K <= 32 * Parts and rows within [0, N).
#include "base/cuda.h"
#include "kernels/common/warp_chain.cuh"
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
  const float shared_retention = args.retention && !args.channel_retention ? args.retention[pair] : 1.0f;
#pragma unroll
  for (int part = 0; part < Parts; ++part) {
    const int channel = part * kWarpSize + lane;
    const bool valid = channel < K;
    token.key[part] = valid ? args.key[pair * K + channel] : 0.0f;
    token.retention[part] =
        args.channel_retention && valid ? args.retention[pair * K + channel] : shared_retention;
  }
  return token;
}

template <int Parts>
__global__ void __launch_bounds__(kWarpSize)
    precond_scan_forward_kernel(const __grid_constant__ PrecondScanForwardArgs args) {
  const PrecondScanShape& shape = args.shape;
  const int K = shape.key_size;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t chain = blockIdx.x;  // sequence * HV + head
  const int64_t sequence = chain / shape.num_heads;
  const int64_t head = chain % shape.num_heads;
  const int64_t begin = shape.offsets[sequence];
  const int64_t end = shape.offsets[sequence + 1];
  const auto pair_of = [&](int64_t token) { return shape.rows[token] * shape.num_heads + head; };

  float d[Parts];
#pragma unroll
  for (int part = 0; part < Parts; ++part) {
    const int channel = part * kWarpSize + lane;
    d[part] = channel < K ? args.initial[chain * K + channel] : 0.0f;
  }
  ForwardToken<Parts> ahead[kPrefetch];
#pragma unroll
  for (int i = 0; i < kPrefetch; ++i)
    if (begin + i < end) ahead[i] = load_token<Parts>(args, pair_of(begin + i), lane);

  for (int64_t block = begin; block < end; block += kPrefetch) {
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      const int64_t token = block + i;
      if (token >= end) break;
      const ForwardToken<Parts> now = ahead[i];
      if (token + kPrefetch < end) ahead[i] = load_token<Parts>(args, pair_of(token + kPrefetch), lane);
      const int64_t pair = pair_of(token);
      float dot = 0.0f;
#pragma unroll
      for (int part = 0; part < Parts; ++part) dot += d[part] * (now.key[part] * now.key[part]);
      const float s = warp_sum(dot);
      const float step = now.gain - now.feedback * s;
      if (lane == 0) args.s[pair] = s;
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        const int channel = part * kWarpSize + lane;
        const float kept =
            args.anchored ? 1.0f + now.retention[part] * (d[part] - 1.0f) : now.retention[part] * d[part];
        const float proposed = kept + step * (now.key[part] * now.key[part]);
        if (channel < K) {
          args.d[pair * K + channel] = d[part];
          args.inside[pair * K + channel] = proposed >= args.box_min && proposed <= args.box_max;
        }
        d[part] = fminf(fmaxf(proposed, args.box_min), args.box_max);
      }
    }
  }
#pragma unroll
  for (int part = 0; part < Parts; ++part) {
    const int channel = part * kWarpSize + lane;
    if (channel < K) args.final_d[chain * K + channel] = d[part];
  }
}

}  // namespace

void launch(const PrecondScanForwardArgs& args, CUstream_st* stream) {
  launch_by_key_size(args.shape, [&](auto parts, unsigned blocks) {
    precond_scan_forward_kernel<decltype(parts)::value><<<blocks, kWarpSize, 0, stream>>>(args);
  });
}

}  // namespace osdn::kernels
