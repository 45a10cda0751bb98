// Forward preconditioner scan (docs/ops/precond_scan.md eq. 1-5), one launch. A block of threads per chain:
// the chain's warp does only what the next token waits for, the workers all the rest. Any architecture from
// 8.0 on.
#include "kernels/common/count.cuh"
#include "kernels/detail/precond_scan_chain.cuh"
#include "kernels/detail/residual_terms.cuh"

namespace osdn::kernels {
namespace {

// Of a block: where a chain has a multiprocessor to itself, and where two blocks share one. Workers are as
// many in both, and with them the order in which statistics are summed.
constexpr int kForwardWorkers = 12;
constexpr int kForwardWarps = 16;
constexpr int kForwardHalfWarps = 1 + kForwardWorkers;
static_assert(scan_workers_apart(kForwardWarps) == kForwardWorkers);
constexpr int kFloatBlocks = 64;        // of a worker, whose statistics' terms are summed in fp32
constexpr float kFixedPointBox = 8.0f;  // largest d for which sums over unit keys are taken in fixed point

/// A block of tokens on its way: by the worker x, coefficients and retention, by the chain d and the totals.
template <typename T, int P, bool Channel>
struct ForwardSlot {
  static constexpr int kTokens = kScanBlock<T, P, Channel>;
  alignas(16) float x[kTokens][kWarpSize * P];
  alignas(16) float retention[Channel ? kTokens : 1][Channel ? kWarpSize * P : 4];
  alignas(16) float d[kWarpSize * P];  // at the first token
  Row<T, P> key[kTokens][kWarpSize];   // unit
  float4 coefficients[kTokens];        // step = x - y * total; retention z and anchor w of all channels
  float total[kTokens];                // of <d, x> as WarpSumScale reads it
};

/// One token in the chain's registers.
template <int P, bool Channel>
struct ForwardToken {
  float x[P];
  float4 coefficients;
  float retention[Channel ? P : 1];

  template <typename Slot>
  __device__ void load(const Slot& slot, int token) {
    get_row<P>(x, slot.x[token]);
    coefficients = slot.coefficients[token];
    if constexpr (Channel) get_row<P>(retention, slot.retention[token]);
  }
  __device__ float step(float total) const { return __fmaf_rn(-coefficients.y, total, coefficients.x); }
  __device__ float next(float d, int i, float step, const PrecondScanInputs& in) const {
    const float r = Channel ? retention[Channel ? i : 0] : coefficients.z;
    const float anchor = Channel ? scan_anchor(r, in.anchored) : coefficients.w;
    return clipped(proposed_d(d, x[i], r, anchor, step), in);
  }
};

template <bool Fixed, typename T, int P, bool Channel>
__device__ void forward_chain(const PrecondScanForwardArgs& args, const ScanChain<P>& chain,
                              ForwardSlot<T, P, Channel>* slots, const ScanHandover& handover,
                              const WarpSumScale& scale) {
  using Slot = ForwardSlot<T, P, Channel>;
  const PrecondScanInputs& in = args.in;
  const int64_t blocks = (chain.length + Slot::kTokens - 1) / Slot::kTokens;
  float d[P];
  load_row<float, P>(args.initial + (args.shared_initial ? chain.head : chain.state) * in.key_size +
                     chain.channel)
      .unpack(d);
  ForwardToken<P, Channel> next;
  ScanTurns turns(handover, blocks > 0);
  if (blocks > 0) next.load(slots[turns.worker()], 0);
  for (int64_t block = 0; block < blocks; ++block) {
    Slot& slot = slots[turns.worker()];
    const bool more = block + 1 < blocks;
    put_row<P>(slot.d, d);
    constexpr int kRound = kScanRound<Slot::kTokens>;
#pragma unroll 1
    for (int begin = 0; begin < Slot::kTokens; begin += kRound) {
#pragma unroll
      for (int token = begin; token < begin + kRound; ++token) {
        const ForwardToken<P, Channel> now = next;
        const float total = warp_total<Fixed>(shifted_dot<P>(d, now.x, scale.shift));
        if (token + 1 < begin + kRound) {
          next.load(slot, token + 1);
        } else {
          const bool within = token + 1 < Slot::kTokens;
          if (!within && more) turns.wait_for_next();
          next.load(within || !more ? slot : slots[turns.next_worker()], within ? token + 1 : 0);
        }
        const float step = now.step(total);
#pragma unroll
        for (int i = 0; i < P; ++i) d[i] = now.next(d[i], i, step, in);
        if (scan_lane() == 0) slot.total[token] = total;
      }
    }
    turns.go_on();
  }
  store_row<float, P>(args.final_d + chain.state * in.key_size + chain.channel, d, chain.active);
}

/// A block's write keys from its unit keys, steps and first d; with Collect also the terms of its d and
/// retention.
template <bool Collect, typename T, int P, bool Channel>
__device__ void write_block(const PrecondScanInputs& in, const ForwardSlot<T, P, Channel>& slot,
                            float (&d)[P], T* target, int count, bool active, LaneResiduals& terms) {
  constexpr int kTokens = ForwardSlot<T, P, Channel>::kTokens;
  const int64_t stride = static_cast<int64_t>(in.num_value_heads) * in.key_size;
#pragma unroll kScanGroup
  for (int token = 0; token < kTokens; ++token) {
    ForwardToken<P, Channel> now;
    now.coefficients = slot.coefficients[token];
    if constexpr (Channel) get_row<P>(now.retention, slot.retention[token]);
    const float step = now.step(slot.total[token]);
    const bool exists = active && token < count;
    float key[P];
    float written[P];
    slot.key[token][scan_lane()].unpack(key);
    if (Collect && exists) {
#pragma unroll
      for (int i = 0; i < P; ++i) {
        terms.scale_sum += d[i];
        terms.scale_min = fminf(terms.scale_min, d[i]);
        terms.scale_max = fmaxf(terms.scale_max, d[i]);
        count_either(terms.scale_at_box, d[i], in.box_min, in.box_max);
        if constexpr (Channel) terms.retention_sum += now.retention[i];
      }
    }
#pragma unroll
    for (int i = 0; i < P; ++i) {
      now.x[i] = __fmul_rn(key[i], key[i]);
      written[i] = d[i] * key[i];
      d[i] = now.next(d[i], i, step, in);
    }
    store_row<T, P>(target, written, exists);
    target += stride;
  }
}

template <typename T, int P, bool Channel>
__device__ void forward_worker(const PrecondScanForwardArgs& args, const ScanChain<P>& chain,
                               ForwardSlot<T, P, Channel>& slot, int worker, const ScanHandover& handover,
                               const WarpSumScale& scale, double (&statistics)[kResidualTerms]) {
  constexpr int kTokens = ForwardSlot<T, P, Channel>::kTokens;
  const PrecondScanInputs& in = args.in;
  const int64_t blocks = (chain.length + kTokens - 1) / kTokens;
  const int lane = scan_lane();
  const int own = lane % kTokens;  // the token whose numbers this lane works out
  const int64_t HV = in.num_value_heads;
  LaneResiduals terms;
  int unmerged = 0;  // blocks whose terms these are
  int round = 0;
  for (int64_t block = worker; block < blocks; block += handover.workers, ++round) {
    const int64_t begin = chain.first + block * kTokens;
    const int count = static_cast<int>(min(chain.length - block * kTokens, static_cast<int64_t>(kTokens)));
    const int64_t pair = (begin + min(own, count - 1)) * HV + chain.head;
    const bool exists = own < count;
    RowStream<T, P> keys(static_cast<const T*>(in.k.data) + begin * in.k.token_stride +
                             chain.key_head * in.k.head_stride + chain.channel,
                         in.k.token_stride, count, chain.active);
    const float beta = exists ? in.beta[pair] : 0.0f;
    const float retention = !Channel && in.retention != nullptr && exists ? in.retention[pair] : 1.0f;
    if constexpr (Channel) {
      const float* rows = in.retention + (begin * HV + chain.head) * in.key_size + chain.channel;
#pragma unroll kScanGroup
      for (int token = 0; token < kTokens; ++token) {
        float row[P];
        load_row<float, P>(rows + min(token, count - 1) * HV * in.key_size).unpack(row);
#pragma unroll
        for (int i = 0; i < P; ++i) row[i] = token < count ? row[i] : 1.0f;
        put_row<P>(slot.retention[token], row);
      }
    }
    float rstd = 0.0f;
    float plain = 0.0f;
#pragma unroll 1
    for (int group = 0; group < kTokens; group += kScanGroup) {
      Row<T, P> key[kScanGroup];
      keys.take(key, group + kScanGroup < kTokens);
      float values[P];
      float sums[kScanGroup];
#pragma unroll
      for (int i = 0; i < kScanGroup; ++i) {
        key[i].unpack(values);
        sums[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < P; ++c) sums[i] += values[c] * values[c];
      }
      // The lane's token of the group. Beyond the end keys of 0, which leave d as it is.
      const float square = in.normalize ? warp_sums<kScanGroup>(sums) : 0.0f;
      float own_rstd = in.normalize ? 1.0f / sqrtf(square + kUnitEpsilon) : 1.0f;
      if (group + lane % kScanGroup >= count) own_rstd = 0.0f;
#pragma unroll
      for (int i = 0; i < kScanGroup; ++i) {
        const Row<T, P> unit = unit_key<T, P>(key[i], __shfl_sync(kFullWarp, own_rstd, i));
        slot.key[group + i][lane] = unit;
        unit.unpack(values);
        sums[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < P; ++c) {
          values[c] = __fmul_rn(values[c], values[c]);
          sums[i] += values[c];
        }
        put_row<P>(slot.x[group + i], values);
      }
      const float own_plain = warp_sums<kScanGroup>(sums);
      if (own / kScanGroup == group / kScanGroup) {
        rstd = own_rstd;
        plain = own_plain;
      }
    }
    const ScanCoefficients c = exists ? scan_coefficients(in, beta, plain) : ScanCoefficients{0.0f, 0.0f};
    // gain - feedback s, in terms of the total
    const float4 coefficients = {__fmaf_rn(c.feedback, scale.zero * scale.unit, c.gain),
                                 c.feedback * scale.unit, retention, scan_anchor(retention, in.anchored)};
    if (lane < kTokens) slot.coefficients[own] = coefficients;
    handover.pass_block(worker, round);
    float d[P];
    get_row<P>(d, slot.d);
    if (args.block_d != nullptr)
      store_row<float, P>(
          args.block_d + ((chain.block + block) * HV + chain.head) * in.key_size + chain.channel, d,
          chain.active);
    const float s = (slot.total[own] - scale.zero) * scale.unit;
    if (args.tokens != nullptr && exists && lane < kTokens)
      args.tokens[pair] = {rstd, plain, s, __fmaf_rn(-coefficients.y, slot.total[own], coefficients.x)};
    T* target = static_cast<T*>(args.write_key) + (begin * HV + chain.head) * in.key_size + chain.channel;
    if (args.statistics == nullptr) {
      write_block<false, T, P, Channel>(in, slot, d, target, count, chain.active, terms);
    } else {
      write_block<true, T, P, Channel>(in, slot, d, target, count, chain.active, terms);
      if (exists && lane < kTokens) {
        terms.add_write(beta * s, beta * plain, beta);
        if (!Channel && in.retention != nullptr) terms.retention_sum += retention;
      }
      if (++unmerged == kFloatBlocks || block + handover.workers >= blocks) {
        terms.merge_into(statistics, in.key_size, Channel ? in.key_size : in.retention != nullptr ? 1 : 0);
        terms = {};
        unmerged = 0;
      }
    }
    __syncwarp();  // the slot has been read
  }
}

template <typename T, int P, bool Channel>
__global__ void __launch_bounds__((P < 8 ? 2 * kForwardHalfWarps : kForwardWarps) * kWarpSize)
    precond_scan_forward_kernel(const __grid_constant__ PrecondScanForwardArgs args, int workers) {
  using Slot = ForwardSlot<T, P, Channel>;
  Slot* slots = reinterpret_cast<Slot*>(dynamic_shared_bytes);
  const ScanHandover handover = scan_handover<Slot>(workers);
  handover.begin();
  const PrecondScanInputs& in = args.in;
  const ScanChain<P> chain(in, Slot::kTokens);
  // A unit key bounds <d, x> by the largest |d|, which is the box's but for the first d. fp32 keys are for
  // accuracy, not for speed.
  float largest = fmaxf(fabsf(in.box_min), fabsf(in.box_max));
  {
    float d[P];
    load_row<float, P>(args.initial + (args.shared_initial ? chain.head : chain.state) * in.key_size +
                       chain.channel)
        .unpack(d);
#pragma unroll
    for (int i = 0; i < P; ++i) largest = fmaxf(largest, fabsf(d[i]));
  }
  largest = __uint_as_float(__reduce_max_sync(kFullWarp, __float_as_uint(largest)));
  const bool fixed = std::is_same_v<T, __nv_bfloat16> && in.normalize && largest <= kFixedPointBox;
  int bits = 22;  // so that 2^22 units exceed the sum
  for (float bound = 1.0f; bits > 18 && largest * 1.03125f >= bound; bound *= 2.0f) --bits;
  const WarpSumScale scale = warp_sum_scale(fixed, bits);

  __shared__ double parts[kForwardWarps][kResidualTerms];
  const int warp = scan_warp();
  const int worker = scan_worker();
  if (scan_lane() < kResidualTerms) parts[warp][scan_lane()] = neutral_residual_term(scan_lane());
  __syncwarp();
  if (warp == 0) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if (fixed) forward_chain<true, T, P, Channel>(args, chain, slots, handover, scale);
    }
    if (!fixed) forward_chain<false, T, P, Channel>(args, chain, slots, handover, scale);
  } else if (worker < workers) {
    forward_worker<T, P, Channel>(args, chain, slots[worker], worker, handover, scale, parts[warp]);
  }
  if (args.statistics == nullptr) return;
  __syncthreads();
  const int term = static_cast<int>(threadIdx.x);
  if (term >= kResidualTerms) return;
  double all = neutral_residual_term(term);
  for (int part = 0; part < workers; ++part)
    all = merge_residual_term(term, all, parts[scan_warp_of(part)][term]);
  args.statistics[static_cast<int64_t>(blockIdx.x) * kResidualTerms + term] = all;
}

}  // namespace

void launch(const PrecondScanForwardArgs& args, CUstream_st* stream) {
  if (args.in.num_sequences * args.in.num_value_heads == 0 || args.in.key_size == 0) return;
  const bool one_each = args.in.num_sequences * args.in.num_value_heads <= multiprocessors();
  by_key(args.in, [&](auto type, auto channels, auto channel_retention) {
    using T = decltype(type);
    constexpr int P = decltype(channels)::value;
    constexpr bool kChannel = decltype(channel_retention)::value;
    const bool alone = P == 8 || one_each;  // on its multiprocessor
    launch_scan<ForwardSlot<T, P, kChannel>>(precond_scan_forward_kernel<T, P, kChannel>,
                                             alone ? kForwardWarps : kForwardHalfWarps, kForwardWorkers, args,
                                             stream);
  });
}

}  // namespace osdn::kernels
