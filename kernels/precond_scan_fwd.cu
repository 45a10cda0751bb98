// Forward preconditioner scan (docs/ops/precond_scan.md eq. 1-5). A first kernel makes each token's
// coefficients, a warp a token and head; then one warp a (sequence, value head) walks through the tokens. No
// shared memory. Any architecture from 8.0 on.
#include "kernels/detail/precond_scan_chain.cuh"

namespace osdn::kernels {
namespace {

constexpr int kCoefficientThreads = 256;
constexpr int kLanesPerRow = 8;           // of the coefficients
constexpr float kUnitEpsilon = 1e-6f;     // inside the root of the key's norm
constexpr float kKeyNormEpsilon = 1e-5f;  // added to the denominator
constexpr float kFixedPointBox = 8.0f;    // largest d for which sums over unit keys are taken in fixed point

/// Sum over the lanes of a row, the same in all of them.
__device__ float row_sum(float value) {
#pragma unroll
  for (int distance = kLanesPerRow / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

template <typename T, int P>
__global__ void __launch_bounds__(kCoefficientThreads)
    precond_scan_coefficients_kernel(const __grid_constant__ PrecondScanForwardArgs args) {
  const PrecondScanInputs& in = args.in;
  const int64_t pairs = in.num_tokens * in.num_value_heads;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kCoefficientThreads + threadIdx.x) / kLanesPerRow;
  const int64_t pair = min(row, pairs - 1);  // lanes without a row help in the sums of their warp
  const int lane = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const int64_t token = pair / in.num_value_heads;
  const int key_head = static_cast<int>(pair % in.num_value_heads) / (in.num_value_heads / in.num_key_heads);
  const T* source =
      static_cast<const T*>(in.k.data) + token * in.k.token_stride + key_head * in.k.head_stride;
  constexpr int kRounds = kWarpSize / kLanesPerRow;
  Row<T, P> given[kRounds];
  float key[P];
  float sum = 0.0f;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int channel = (round * kLanesPerRow + lane) * P;
    if (channel >= in.key_size) break;
    given[round] = load_row<T, P>(source + channel);
    given[round].unpack(key);
#pragma unroll
    for (int i = 0; i < P; ++i) sum += key[i] * key[i];
  }
  PrecondScanCoefficients out;
  out.rstd = in.normalize ? 1.0f / sqrtf(row_sum(sum) + kUnitEpsilon) : 1.0f;
  sum = 0.0f;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if ((round * kLanesPerRow + lane) * P >= in.key_size) break;
    float x[P];
    unit_key<T, P>(key, x, given[round], out.rstd);
#pragma unroll
    for (int i = 0; i < P; ++i) sum += x[i];
  }
  out.plain = row_sum(sum);
  if (lane != 0 || row >= pairs) return;
  const float beta = in.beta[pair];
  const float rate = in.divide_by_key_norm ? in.step_size / (out.plain + kKeyNormEpsilon) : in.step_size;
  out.gain = in.beta_aware ? rate * beta : rate;
  out.feedback = in.beta_aware ? rate * beta * beta : rate;
  args.coefficients[pair] = out;
}

template <typename T, int P, bool Channel>
struct ForwardToken {
  Row<T, P> key;
  Row<float, Channel ? P : 1> retention;
  PrecondScanCoefficients coefficients;
};

template <typename T, int P, bool Channel, bool Fixed>
__global__ void __launch_bounds__(kWarpSize)
    precond_scan_forward_kernel(const __grid_constant__ PrecondScanForwardArgs args) {
  constexpr int kGroup = kScanGroup<ForwardToken<T, P, Channel>>;
  const PrecondScanInputs& in = args.in;
  const ScanChain<P> chain(in);
  float d[P];
  load_row<float, P>(args.initial + (args.shared_initial ? chain.head : chain.state) * in.key_size +
                     chain.channel)
      .unpack(d);

  Walk<const T> keys = walk_rows<T>(in.k, chain, chain.key_head, 0, 1);
  Walk<PrecondScanCoefficients> coefficients = walk_array(args.coefficients, in, chain, 1, 0, 0, 1);
  RetentionWalk<P, Channel> retention(in, chain, args.coefficients, 0, 1);
  int loaded = 0;
  const auto load_next = [&] {  // past the end the last token again, which nobody uses
    const ForwardToken<T, P, Channel> token = {load_row<T, P>(keys.at), retention.load(), *coefficients.at};
    const bool more = ++loaded < chain.length;
    keys.step(more);
    coefficients.step(more);
    retention.walk.step(more);
    return token;
  };
  Walk<T> write_keys =
      walk_array(static_cast<T*>(args.write_key), in, chain, in.key_size, chain.channel, 0, 1);
  Walk<float> all_d = walk_array(args.d, in, chain, in.key_size, chain.channel, 0, 1);
  Walk<float> all_s = walk_array(args.s, in, chain, 1, 0, 0, 1);
  const bool keep = args.d != nullptr && chain.active;

  // A group of tokens is in work while the next one is loaded: loads that are waited for one by one would
  // share the few counters a warp has for them, and each wait would be for the last.
  ForwardToken<T, P, Channel> group[kGroup];
  const auto load_group = [&](ForwardToken<T, P, Channel>(&into)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) into[i] = load_next();
  };
  if (chain.length > 0) load_group(group);
  for (int begin = 0; begin < chain.length; begin += kGroup) {
    ForwardToken<T, P, Channel> next[kGroup];
    load_group(next);
#pragma unroll
    for (int slot = 0; slot < kGroup; ++slot) {
      if (begin + slot >= chain.length) break;
      const ForwardToken<T, P, Channel>& now = group[slot];
      float key[P];
      float x[P];
      unit_key<T, P>(key, x, now.key, now.coefficients.rstd);
      float share = 0.0f;
#pragma unroll
      for (int i = 0; i < P; ++i) share += d[i] * x[i];
      if (!chain.active) share = 0.0f;
      const float s = Fixed ? warp_sum_fixed(share) : warp_sum(share);
      const float step = scan_step(now.coefficients, s);
      float written[P];
#pragma unroll
      for (int i = 0; i < P; ++i) written[i] = d[i] * key[i];
      store_row<T, P>(write_keys.at, written, chain.active);
      store_row<float, P>(all_d.at, d, keep);
      if (threadIdx.x == 0) *all_s.at = s;
      write_keys.step(true);
      all_d.step(true);
      all_s.step(true);
#pragma unroll
      for (int i = 0; i < P; ++i)
        d[i] = fminf(
            fmaxf(proposed_d(d[i], x[i], retention.of(now.retention, i), step, in.anchored), in.box_min),
            in.box_max);
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) group[i] = next[i];
  }
  store_row<float, P>(args.final_d + chain.state * in.key_size + chain.channel, d, chain.active);
}

}  // namespace

void launch(const PrecondScanForwardArgs& args, CUstream_st* stream) {
  const PrecondScanInputs& in = args.in;
  const int64_t pairs = in.num_tokens * in.num_value_heads;
  const int64_t chains = in.num_sequences * in.num_value_heads;
  if (chains == 0 || in.key_size == 0) return;
  // A unit key bounds <d, x> by the box. fp32 keys are for accuracy, not for speed.
  const bool fixed = in.normalize && in.box_max <= kFixedPointBox && in.box_min >= -kFixedPointBox;
  by_key(in, [&](auto type, auto channels, auto channel_retention) {
    using T = decltype(type);
    constexpr int P = decltype(channels)::value;
    constexpr bool kChannel = decltype(channel_retention)::value;
    if (pairs > 0)
      precond_scan_coefficients_kernel<T, P>
          <<<static_cast<unsigned>((pairs * kLanesPerRow + kCoefficientThreads - 1) / kCoefficientThreads),
             kCoefficientThreads, 0, stream>>>(args);
    const auto blocks = static_cast<unsigned>(chains);
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if (fixed) {
        precond_scan_forward_kernel<T, P, kChannel, true><<<blocks, kWarpSize, 0, stream>>>(args);
        return;
      }
    }
    precond_scan_forward_kernel<T, P, kChannel, false><<<blocks, kWarpSize, 0, stream>>>(args);
  });
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
