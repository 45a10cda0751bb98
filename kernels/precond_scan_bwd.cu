// Reverse preconditioner scan (docs/ops/precond_scan.md eq. 6-12): the forward's chains, tokens from last to
// first, down to the gradient of the key as given. No shared memory. Any architecture from 8.0 on.
#include "kernels/detail/precond_scan_chain.cuh"

namespace osdn::kernels {
namespace {

constexpr float kKeyNormEpsilon = 1e-5f;  // added to the denominator

template <typename T, int P, bool Channel>
struct BackwardToken {
  Row<T, P> key;
  Row<T, P> upstream;
  Row<float, P> d;
  Row<float, Channel ? P : 1> retention;
  PrecondScanCoefficients coefficients;
  float s;
  float beta;
};

template <typename T, int P, bool Channel>
__global__ void __launch_bounds__(kWarpSize)
    precond_scan_backward_kernel(const __grid_constant__ PrecondScanBackwardArgs args) {
  constexpr int kGroup = kScanGroup<BackwardToken<T, P, Channel>>;
  const PrecondScanInputs& in = args.in;
  const ScanChain<P> chain(in);
  const int last = chain.length - 1;
  float gradient[P] = {};  // of the d that the next token uses
  if (args.d_final != nullptr)
    load_row<float, P>(args.d_final + chain.state * in.key_size + chain.channel).unpack(gradient);

  Walk<const T> keys = walk_rows<T>(in.k, chain, chain.key_head, last, -1);
  Walk<const T> upstream = walk_rows<T>(args.d_write_key, chain, chain.head, last, -1);
  Walk<const float> all_d = walk_array(args.d, in, chain, in.key_size, chain.channel, last, -1);
  Walk<const PrecondScanCoefficients> coefficients = walk_array(args.coefficients, in, chain, 1, 0, last, -1);
  Walk<const float> all_s = walk_array(args.s, in, chain, 1, 0, last, -1);
  Walk<const float> betas = walk_array(in.beta, in, chain, 1, 0, last, -1);
  RetentionWalk<P, Channel> retention(in, chain, args.coefficients, last, -1);
  const bool has_upstream = args.d_write_key.data != nullptr;
  if (!has_upstream) upstream = keys;
  int loaded = 0;
  const auto load_next = [&] {  // past the first token that one again, which nobody uses
    const BackwardToken<T, P, Channel> token = {load_row<T, P>(keys.at),
                                                load_row<T, P>(upstream.at),
                                                load_row<float, P>(all_d.at),
                                                retention.load(),
                                                *coefficients.at,
                                                *all_s.at,
                                                *betas.at};
    const bool more = ++loaded < chain.length;
    keys.step(more);
    upstream.step(more);
    all_d.step(more);
    coefficients.step(more);
    all_s.step(more);
    betas.step(more);
    retention.walk.step(more);
    return token;
  };
  Walk<T> d_keys = walk_array(static_cast<T*>(args.d_k), in, chain, in.key_size, chain.channel, last, -1);
  Walk<float> d_betas = walk_array(args.d_beta, in, chain, 1, 0, last, -1);
  Walk<float> d_retention = walk_array(args.d_retention, in, chain, Channel ? in.key_size : 1,
                                       Channel ? chain.channel : 0, last, -1);

  // A group of tokens is in work while the next one is loaded: loads that are waited for one by one would
  // share the few counters a warp has for them, and each wait would be for the last.
  BackwardToken<T, P, Channel> group[kGroup];
  const auto load_group = [&](BackwardToken<T, P, Channel>(&into)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) into[i] = load_next();
  };
  if (chain.length > 0) load_group(group);
  for (int begin = 0; begin < chain.length; begin += kGroup) {
    BackwardToken<T, P, Channel> next[kGroup];
    load_group(next);
#pragma unroll
    for (int slot = 0; slot < kGroup; ++slot) {
      if (begin + slot >= chain.length) break;
      const BackwardToken<T, P, Channel>& now = group[slot];
      const PrecondScanCoefficients& c = now.coefficients;
      float key[P];
      float x[P];
      unit_key<T, P>(key, x, now.key, c.rstd);
      float y[P];
      now.upstream.unpack(y);
#pragma unroll
      for (int i = 0; i < P; ++i) y[i] = has_upstream ? y[i] : 0.0f;
      const float step = scan_step(c, now.s);

      // Through the clip (eq. 6), then along x.
      float lambda[P];
      float share = 0.0f;
      float written = 0.0f;  // <d o k, y>
#pragma unroll
      for (int i = 0; i < P; ++i) {
        const float proposed =
            proposed_d(now.d.value[i], x[i], retention.of(now.retention, i), step, in.anchored);
        lambda[i] = proposed >= in.box_min && proposed <= in.box_max ? gradient[i] : 0.0f;
        share += lambda[i] * x[i];
        written += now.d.value[i] * key[i] * y[i];
      }
      if (!chain.active) share = written = 0.0f;
      const float along = args.detach ? 0.0f : warp_sum(share);
      const float pull = c.feedback * along;
#pragma unroll
      for (int i = 0; i < P; ++i)  // eq. 11
        gradient[i] = retention.of(now.retention, i) * lambda[i] + (key[i] * y[i] - pull * x[i]);

      // The key: eq. 9, 10, then through its normalisation. <k, dk> needs no further sum over eq. 9, since
      // <x, lambda> and <x, d> are known.
      const float inverse_norm = in.divide_by_key_norm ? 1.0f / (c.plain + kKeyNormEpsilon) : 0.0f;
      const float constant = step * along * inverse_norm;
      const float through_d = args.detach ? 0.0f : 1.0f;
      float along_key = 0.0f;
      if (in.normalize)
        along_key = warp_sum(written) + through_d * 2.0f * (step * along - pull * now.s - constant * c.plain);
      float d_key[P];
#pragma unroll
      for (int i = 0; i < P; ++i) {
        const float d_x = through_d * (step * lambda[i] - pull * now.d.value[i] - constant);
        d_key[i] = 2.0f * key[i] * d_x + now.d.value[i] * y[i];
        d_key[i] = c.rstd * (d_key[i] - key[i] * along_key);
      }
      store_row<T, P>(d_keys.at, d_key, chain.active);
      d_keys.step(true);
      if (args.detach) continue;

      if (threadIdx.x == 0) {  // eq. 8
        const float rate = in.divide_by_key_norm ? in.step_size * inverse_norm : in.step_size;
        *d_betas.at = in.beta_aware ? rate * (1.0f - 2.0f * now.beta * now.s) * along : 0.0f;
      }
      d_betas.step(true);
      if (in.retention != nullptr) {  // eq. 7
        float through[P];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < P; ++i) {
          through[i] = lambda[i] * (in.anchored ? now.d.value[i] - 1.0f : now.d.value[i]);
          sum += through[i];
        }
        if constexpr (Channel) {
          store_row<float, P>(d_retention.at, through, chain.active);
        } else {
          sum = warp_sum(chain.active ? sum : 0.0f);
          if (threadIdx.x == 0) *d_retention.at = sum;
        }
        d_retention.step(true);
      }
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) group[i] = next[i];
  }
  if (args.d_initial != nullptr)
    store_row<float, P>(args.d_initial + chain.state * in.key_size + chain.channel, gradient, chain.active);
}

}  // namespace

void launch(const PrecondScanBackwardArgs& args, CUstream_st* stream) {
  const int64_t chains = args.in.num_sequences * args.in.num_value_heads;
  if (chains == 0 || args.in.key_size == 0) return;
  by_key(args.in, [&](auto type, auto channels, auto channel_retention) {
    precond_scan_backward_kernel<decltype(type), decltype(channels)::value,
                                 decltype(channel_retention)::value>
        <<<static_cast<unsigned>(chains), kWarpSize, 0, stream>>>(args);
  });
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
