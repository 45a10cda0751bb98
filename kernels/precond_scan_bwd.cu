// Reverse preconditioner scan (docs/ops/precond_scan.md eq. 6-12), one launch, in the forward's roles: the
// chain's warp carries the gradient of d from block to block, last to first; the workers repeat the blocks'
// d, and make the gradients of the keys and the rest. Any architecture from 8.0 on.
#include "kernels/detail/precond_scan_chain.cuh"

namespace osdn::kernels {
namespace {

// fp32 keys, which are not for speed, need the registers.
template <typename T>
constexpr int kBackwardWarps = std::is_same_v<T, __nv_bfloat16> ? 16 : 8;
constexpr int kBoundBits = 20;           // of what bounds a sum; twice that and a rounded key's excess fit 22
constexpr float kLargestGrowth = 16.0f;  // of that bound over a block; beyond it float sums
constexpr float kLargestBound = 1e30f;
constexpr float kLostInSquares = 1e-20f;  // at most what the squares of small numbers in a block lose

/// A block of tokens on its way: by the worker for the chain and for itself, and what the chain leaves.
template <typename T, int P, bool Channel>
struct BackwardSlot {
  static constexpr int kTokens = kScanBlock<T, P, Channel>;
  alignas(16) float x[kTokens][kWarpSize * P];  // sign bit set: the clip was active
  alignas(
      16) float through[kTokens][kWarpSize * P];  // k o y, what the token's write adds to the gradient of d
  alignas(16) float retention[Channel ? kTokens : 1][Channel ? kWarpSize * P : 4];
  alignas(16) Row<T, P> key[kTokens][kWarpSize];       // unit
  alignas(16) Row<T, P> upstream[kTokens][kWarpSize];  // y
  alignas(16) float d[kTokens][kWarpSize * P];
  float4 scalars[kTokens];       // the worker's own: pull, step, constant along the key, rstd
  float2 coefficients[kTokens];  // feedback, retention
  float2 bound;  // growth of the norm of the gradient over the block, what the block adds to it
  alignas(16) float d_d[kWarpSize * P];  // gradient of d after the block, to be multiplied by inverse_scale
  float along[kTokens];                  // <lambda, x>, to be multiplied by sum_scale and inverse_scale
  float inverse_scale;
  float sum_scale;
};

template <int P>
__device__ void through_clip(float (&lambda)[P], const float (&gradient)[P], const float (&x)[P]) {
#pragma unroll
  for (int i = 0; i < P; ++i) lambda[i] = __float_as_int(x[i]) < 0 ? 0.0f : gradient[i];
}

/// One token in the chain's registers.
template <int P, bool Channel>
struct BackwardToken {
  float x[P];
  float through[P];
  float2 coefficients;
  float retention[Channel ? P : 1];

  template <typename Slot>
  __device__ void load(const Slot& slot, int token) {
    get_row<P>(x, slot.x[token]);
    get_row<P>(through, slot.through[token]);
    coefficients = slot.coefficients[token];
    if constexpr (Channel) get_row<P>(retention, slot.retention[token]);
  }
};

template <typename T, int P, bool Channel>
struct BackwardChain {
  using Slot = BackwardSlot<T, P, Channel>;
  static constexpr bool kMayBeFixed = std::is_same_v<T, __nv_bfloat16>;

  float gradient[P];  // of d, times scale
  float scale = 1.0f;
  float inverse_scale = 1.0f;

  /// Another power of two as scale, so that a sum over `slot`'s block fits the fixed point; whether it does.
  __device__ bool rescale(const Slot& slot, float root_of_key_size) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < P; ++i) {
      gradient[i] *= inverse_scale;
      largest = fmaxf(largest, fabsf(gradient[i]));
    }
    largest = __uint_as_float(__reduce_max_sync(kFullWarp, __float_as_uint(largest)));
    const float bound = slot.bound.x * (root_of_key_size * largest + slot.bound.y);
    const bool fits = slot.bound.x <= kLargestGrowth && bound <= kLargestBound;
    const uint32_t exponent = __float_as_uint(bound) >> 23;  // bound < 2^(exponent - 126)
    scale = fits ? __uint_as_float((127u + kBoundBits + 126u - exponent) << 23) : 1.0f;
    inverse_scale = fits ? __uint_as_float((exponent - kBoundBits + 1u) << 23) : 1.0f;
#pragma unroll
    for (int i = 0; i < P; ++i) gradient[i] *= scale;
    return fits;
  }

  /// Through the tokens of a block. `fetch(token)`: loads into `next` the one after the
  /// last of a round.
  template <bool Fixed, typename Fetch>
  __device__ void walk(Slot& slot, BackwardToken<P, Channel>& next, const Fetch& fetch) {
    const WarpSumScale sum = warp_sum_scale(Fixed, 0);
    const float half_unit = 0.5f * sum.unit;  // x is taken twice below
    if (scan_lane() == 0) {
      slot.inverse_scale = inverse_scale;
      slot.sum_scale = half_unit;
    }
    constexpr int kRound = kScanRound<Slot::kTokens>;
#pragma unroll 1
    for (int end = Slot::kTokens; end > 0; end -= kRound) {
#pragma unroll
      for (int token = end - 1; token >= end - kRound; --token) {
        const BackwardToken<P, Channel> now = next;
        float twice[P];  // 2 x where the clip was not active
#pragma unroll
        for (int i = 0; i < P; ++i) twice[i] = now.x[i] + fabsf(now.x[i]);
        const float total = warp_total<Fixed>(shifted_dot<P>(gradient, twice, sum.shift));
        if (token > end - kRound)
          next.load(slot, token - 1);
        else
          fetch(token);
        float lambda[P];
        through_clip<P>(lambda, gradient, now.x);
        const float feedback = now.coefficients.x * half_unit;
        const float along = total - sum.zero;
#pragma unroll
        for (int i = 0; i < P; ++i) {
          const float r = Channel ? now.retention[Channel ? i : 0] : now.coefficients.y;
          const float rest = __fmaf_rn(r, lambda[i], now.through[i] * scale);
          gradient[i] = __fmaf_rn(-feedback * fabsf(now.x[i]), along, rest);
        }
        if (scan_lane() == 0) slot.along[token] = along;
      }
    }
  }

  __device__ void run(const PrecondScanBackwardArgs& args, const ScanChain<P>& chain, Slot* slots,
                      const ScanHandover& handover) {
    const PrecondScanInputs& in = args.in;
    const int64_t blocks = (chain.length + Slot::kTokens - 1) / Slot::kTokens;
    const int64_t state = chain.state * in.key_size + chain.channel;
#pragma unroll
    for (int i = 0; i < P; ++i) gradient[i] = 0.0f;
    if (args.d_final != nullptr && chain.active) load_row<float, P>(args.d_final + state).unpack(gradient);
    const float root_of_key_size = sqrtf(static_cast<float>(in.key_size));
    BackwardToken<P, Channel> next;
    ScanTurns turns(handover, blocks > 0);
    if (blocks > 0) next.load(slots[turns.worker()], Slot::kTokens - 1);
    for (int64_t block = blocks - 1; block >= 0; --block) {
      Slot& slot = slots[turns.worker()];
      const bool more = block > 0;
      const auto fetch = [&](int token) {
        const bool within = token > 0;
        if (!within && more) turns.wait_for_next();
        next.load(within || !more ? slot : slots[turns.next_worker()],
                  within ? token - 1 : Slot::kTokens - 1);
      };
      bool fixed = false;
      if constexpr (kMayBeFixed) {
        fixed = in.normalize && rescale(slot, root_of_key_size);
      }
      put_row<P>(slot.d_d, gradient);
      if constexpr (kMayBeFixed) {
        if (fixed) walk<true>(slot, next, fetch);
      }
      if (!fixed) walk<false>(slot, next, fetch);
      turns.go_on();
    }
#pragma unroll
    for (int i = 0; i < P; ++i) gradient[i] *= inverse_scale;
    if (args.d_initial != nullptr) store_row<float, P>(args.d_initial + state, gradient, chain.active);
  }
};

template <typename T, int P, bool Channel>
__device__ void backward_worker(const PrecondScanBackwardArgs& args, const ScanChain<P>& chain,
                                BackwardSlot<T, P, Channel>& slot, int worker, const ScanHandover& handover) {
  constexpr int kTokens = BackwardSlot<T, P, Channel>::kTokens;
  const PrecondScanInputs& in = args.in;
  const int64_t blocks = (chain.length + kTokens - 1) / kTokens;
  const int lane = scan_lane();
  const int own = lane % kTokens;  // the token whose numbers this lane works out
  const int64_t HV = in.num_value_heads;
  const int64_t row_stride = HV * in.key_size;
  int round = 0;
  for (int64_t block = blocks - 1 - worker; block >= 0; block -= handover.workers, ++round) {
    const int64_t begin = chain.first + block * kTokens;
    const int count = static_cast<int>(min(chain.length - block * kTokens, static_cast<int64_t>(kTokens)));
    const int64_t pair = (begin + min(own, count - 1)) * HV + chain.head;
    const int64_t row = (begin * HV + chain.head) * in.key_size + chain.channel;
    const bool exists = own < count;
    RowStream<T, P> keys(static_cast<const T*>(in.k.data) + begin * in.k.token_stride +
                             chain.key_head * in.k.head_stride + chain.channel,
                         in.k.token_stride, count, chain.active);
    const PrecondScanRows& y = args.d_write_key;
    const bool has_upstream = y.data != nullptr;
    RowStream<T, P> upstreams = has_upstream
                                    ? RowStream<T, P>(static_cast<const T*>(y.data) + begin * y.token_stride +
                                                          chain.head * y.head_stride + chain.channel,
                                                      y.token_stride, count, chain.active)
                                    : keys;
    float d[P];
    load_row<float, P>(args.block_d + ((chain.block + block) * HV + chain.head) * in.key_size + chain.channel)
        .unpack(d);
    PrecondScanToken numbers = args.tokens[pair];
    float beta = in.beta[pair];
    float retention = !Channel && in.retention != nullptr ? in.retention[pair] : 1.0f;
    if (!exists) {  // a key of 0, which leaves the gradient as it is
      numbers = {0.0f, 0.0f, 0.0f, 0.0f};
      beta = 0.0f;
      retention = 1.0f;
    }
    if constexpr (Channel) {
#pragma unroll kScanGroup
      for (int token = 0; token < kTokens; ++token) {
        float values[P];
        load_row<float, P>(in.retention + row + min(token, count - 1) * row_stride).unpack(values);
#pragma unroll
        for (int i = 0; i < P; ++i) values[i] = token < count ? values[i] : 1.0f;
        put_row<P>(slot.retention[token], values);
      }
    }
    const ScanCoefficients c =
        exists ? scan_coefficients(in, beta, numbers.plain) : ScanCoefficients{0.0f, 0.0f};
    if (lane < kTokens) slot.coefficients[own] = {c.feedback, retention};
    // eq. 14
    const float lost = c.feedback * numbers.plain * numbers.plain;
    float growth =
        fmaxf(1.0f, fmaxf(lost - (Channel ? 0.0f : retention), (Channel ? 1.0f : retention) - lost));
#pragma unroll
    for (int distance = kTokens / 2; distance > 0; distance /= 2)
      growth *= __shfl_xor_sync(kFullWarp, growth, distance);

    float square = 0.0f;
    float write = 0.0f;  // <d o k, y>
#pragma unroll 1
    for (int group = 0; group < kTokens; group += kScanGroup) {
      Row<T, P> key[kScanGroup];
      Row<T, P> upstream[kScanGroup];
      keys.take(key, group + kScanGroup < kTokens);
      upstreams.take(upstream, group + kScanGroup < kTokens);
      float written[kScanGroup];
#pragma unroll
      for (int i = 0; i < kScanGroup; ++i) {
        const int token = group + i;
        if (!has_upstream) upstream[i] = {};
        key[i] = unit_key<T, P>(key[i], __shfl_sync(kFullWarp, numbers.rstd, token));
        slot.key[token][lane] = key[i];
        slot.upstream[token][lane] = upstream[i];
        put_row<P>(slot.d[token], d);
        const float step = __shfl_sync(kFullWarp, numbers.step, token);
        float r[Channel ? P : 1] = {__shfl_sync(kFullWarp, retention, token)};
        if constexpr (Channel) get_row<P>(r, slot.retention[token]);
        float x[P];
        float through[P];
        key[i].unpack(x);
        upstream[i].unpack(through);
        written[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < P; ++c) {
          through[c] = x[c] * through[c];
          written[i] += d[c] * through[c];
          square += through[c] * through[c];
          x[c] = __fmul_rn(x[c], x[c]);
          const float kept = r[Channel ? c : 0];
          const float proposed = proposed_d(d[c], x[c], kept, scan_anchor(kept, in.anchored), step);
          d[c] = clipped(proposed, in);
          x[c] = d[c] == proposed ? x[c] : -x[c];
        }
        put_row<P>(slot.x[token], x);
        put_row<P>(slot.through[token], through);
      }
      const float own_write = warp_sums<kScanGroup>(written);
      if (own / kScanGroup == group / kScanGroup) write = own_write;
    }
    square = warp_sum(square);
    if (lane == 0) slot.bound = {growth, sqrtf(kTokens * square) + kLostInSquares};
    // The other gradient of the key, added to this one's: for the last tokens on its way while the chain
    // walks.
    const PrecondScanRows& other = args.d_read_key;
    const bool adds =
        other.data != nullptr && chain.head == chain.key_head * (in.num_value_heads / in.num_key_heads);
    const T* others = static_cast<const T*>(other.data) + begin * other.token_stride +
                      chain.key_head * other.head_stride + chain.channel;
    Row<T, P> next_other[kScanGroup] = {};
    const auto load_others = [&](int group) {
      if (!adds) return;
#pragma unroll
      for (int i = 0; i < kScanGroup; ++i)
        next_other[i] = load_row<T, P>(others + min(group + i, count - 1) * other.token_stride);
    };
    load_others(kTokens - kScanGroup);
    if (!args.detach) handover.pass_block(worker, round);

    // <lambda, x> (eq. 6) and what follows from it for a token as a whole. <k, dk> needs no further sum over
    // eq. 9, since <x, lambda>, <x, d> and <1, x> are known.
    float along = 0.0f;
    float gradient[P] = {};
    if (!args.detach) {
      along = slot.along[own] * slot.sum_scale * slot.inverse_scale;
      get_row<P>(gradient, slot.d_d);
#pragma unroll
      for (int i = 0; i < P; ++i) gradient[i] *= slot.inverse_scale;
    }
    const float inverse_norm = in.divide_by_key_norm ? 1.0f / (numbers.plain + kKeyNormEpsilon) : 0.0f;
    const float step = args.detach ? 0.0f : numbers.step;
    const float pull = c.feedback * along;
    const float constant = step * along * inverse_norm;
    const float along_key =
        in.normalize ? write + 2.0f * (step * along - pull * numbers.s - constant * numbers.plain) : 0.0f;
    if (lane < kTokens) slot.scalars[own] = {pull, step, 2.0f * constant + along_key, numbers.rstd};
    if (!args.detach && exists && lane < kTokens) {  // eq. 8
      const float rate = in.divide_by_key_norm ? in.step_size * inverse_norm : in.step_size;
      args.d_beta[pair] = in.beta_aware ? rate * (1.0f - 2.0f * beta * numbers.s) * along : 0.0f;
    }
    __syncwarp();
    T* target = static_cast<T*>(args.d_k) + row;
    float through_retention = 0.0f;
#pragma unroll 1
    for (int group = kTokens - kScanGroup; group >= 0; group -= kScanGroup) {
      Row<T, P> added[kScanGroup];
#pragma unroll
      for (int i = 0; i < kScanGroup; ++i) added[i] = next_other[i];
      if (group > 0) load_others(group - kScanGroup);
      float sums[kScanGroup];
#pragma unroll
      for (int i = kScanGroup - 1; i >= 0; --i) {
        const int token = group + i;
        float x[P];
        float through[P];
        float lambda[P];
        float k[P];
        float from[P];
        float more[P];
        float r[Channel ? P : 1] = {slot.coefficients[token].y};
        get_row<P>(x, slot.x[token]);
        get_row<P>(through, slot.through[token]);
        get_row<P>(d, slot.d[token]);
        if constexpr (Channel) get_row<P>(r, slot.retention[token]);
        slot.key[token][lane].unpack(k);
        slot.upstream[token][lane].unpack(from);
        added[i].unpack(more);
        const float4 scalars = slot.scalars[token];  // pull, step, constant along the key, rstd
        through_clip<P>(lambda, gradient, x);
        const float twice_step = 2.0f * scalars.y;
        const float twice_pull = 2.0f * scalars.x;
        float d_key[P];
        sums[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < P; ++c) {
          gradient[c] = r[Channel ? c : 0] * lambda[c] + through[c] - scalars.x * fabsf(x[c]);  // eq. 11
          const float d_x = twice_step * lambda[c] - twice_pull * d[c] - scalars.z;             // eq. 9
          d_key[c] = scalars.w * (k[c] * d_x + d[c] * from[c]) + more[c];                       // eq. 10
        }
        if (P == 8 || in.retention != nullptr) {  // with 8 channels a branch costs spills
#pragma unroll
          for (int c = 0; c < P; ++c) {
            lambda[c] *= in.anchored ? d[c] - 1.0f : d[c];  // eq. 7
            sums[i] += lambda[c];
          }
        }
        const bool store = chain.active && token < count;
        store_row<T, P>(target + token * row_stride, d_key, store);
        if constexpr (Channel)
          store_row<float, P>(args.d_retention + row + token * row_stride, lambda, store && !args.detach);
      }
      if (!Channel && in.retention != nullptr) {
        const float own_sum = warp_sums<kScanGroup>(sums);
        if (own / kScanGroup == group / kScanGroup) through_retention = own_sum;
      }
    }
    if (!Channel && in.retention != nullptr && !args.detach && exists && lane < kTokens)
      args.d_retention[pair] = through_retention;
    __syncwarp();  // the slot has been read
  }
}

template <typename T, int P, bool Channel>
__global__ void __launch_bounds__(kBackwardWarps<T>* kWarpSize, 1)
    precond_scan_backward_kernel(const __grid_constant__ PrecondScanBackwardArgs args, int workers) {
  using Slot = BackwardSlot<T, P, Channel>;
  Slot* slots = reinterpret_cast<Slot*>(dynamic_shared_bytes);
  const ScanHandover handover = scan_handover<Slot>(workers);
  handover.begin();
  const ScanChain<P> chain(args.in, Slot::kTokens);
  const int warp = scan_warp();
  const int worker = scan_worker();
  if (warp == 0) {
    if (!args.detach) BackwardChain<T, P, Channel>().run(args, chain, slots, handover);
  } else if (worker < workers) {
    backward_worker<T, P, Channel>(args, chain, slots[worker], worker, handover);
  }
}

}  // namespace

void launch(const PrecondScanBackwardArgs& args, CUstream_st* stream) {
  if (args.in.num_sequences * args.in.num_value_heads == 0 || args.in.key_size == 0) return;
  by_key(args.in, [&](auto type, auto channels, auto channel_retention) {
    using T = decltype(type);
    constexpr int P = decltype(channels)::value;
    constexpr bool kChannel = decltype(channel_retention)::value;
    constexpr int kWarps = kBackwardWarps<T>;
    launch_scan<BackwardSlot<T, P, kChannel>>(precond_scan_backward_kernel<T, P, kChannel>, kWarps,
                                              kWarps - 1, args, stream);
  });
}

}  // namespace osdn::kernels
