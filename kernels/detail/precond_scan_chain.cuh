// What both passes of the preconditioner scan share on the device (docs/ops/precond_scan.md, CUDA): the roles
// of a block's warps, where its chain lies, sums over a warp in fixed point, and the update of d, which the
// passes repeat bit for bit.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/common/block.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/warp.cuh"
#include "kernels/precond_scan.h"

namespace osdn::kernels {

// Warp 0 walks along the chain; the workers prepare blocks of tokens for it and finish them. Where the chain
// is what takes the time, the scheduler that warp 0 is on has no other warp to issue: every fourth warp
// idles.
constexpr int kScanSchedulers = 4;
constexpr int scan_workers_apart(int warps) {
  return warps - (warps + kScanSchedulers - 1) / kScanSchedulers;
}
constexpr float kUnitEpsilon = 1e-6f;     // inside the root of the key's norm
constexpr float kKeyNormEpsilon = 1e-5f;  // added to the denominator
constexpr unsigned kFullWarp = 0xffffffffu;
// Tokens that a worker's loops have in hand at a time, and the chain's. Small: what they run through again
// and again must fit the instruction caches.
constexpr int kScanGroup = 4;
constexpr int kScanChainGroup = 8;

__device__ inline int scan_lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ inline int scan_warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }

/// The worker that this warp, not 0, is; those on the scheduler of warp 0 come last.
__device__ inline int scan_worker() {
  const int warp = scan_warp();
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int row = warp / kScanSchedulers;
  return warp % kScanSchedulers == 0 ? scan_workers_apart(warps) + row - 1 : warp - row - 1;
}
/// The warp that worker `worker` is.
__device__ inline int scan_warp_of(int worker) {
  const int apart = scan_workers_apart(static_cast<int>(blockDim.x) / kWarpSize);
  return worker < apart ? worker + worker / (kScanSchedulers - 1) + 1
                        : (worker - apart + 1) * kScanSchedulers;
}

/// How a block of tokens is handed over, by two barriers a worker: it has a block ready in shared memory; the
/// chain is through with it. All lanes of the warp that hands over arrive.
struct ScanHandover {
  uint32_t barriers;  // shared address, a multiple of 8
  int workers;

  static constexpr int bytes(int workers) { return 2 * workers * kMbarrierBytes; }

  /// By the whole block, before anything else.
  __device__ void begin() const {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < 2 * workers) mbarrier_init(barriers + thread * kMbarrierBytes, kWarpSize);
    __syncthreads();
  }
  __device__ uint32_t ready(int worker) const { return barriers + worker * (2 * kMbarrierBytes); }
  __device__ uint32_t through(int worker) const { return ready(worker) + kMbarrierBytes; }

  /// By a worker that has its `round`-th block ready, from 0; returns once the chain is through with it.
  __device__ void pass_block(int worker, int round) const {
    mbarrier_arrive(ready(worker));
    mbarrier_wait(through(worker), round & 1);
  }
};

/// The chain's way from worker to worker, block after block.
class ScanTurns {
 public:
  /// Returns once the first block is ready, if there is any.
  __device__ ScanTurns(const ScanHandover& handover, bool any) : handover_(handover) {
    if (any) mbarrier_wait(handover_.ready(0), 0);
  }
  __device__ int worker() const { return worker_; }
  __device__ int next_worker() const { return worker_ + 1 == handover_.workers ? 0 : worker_ + 1; }
  /// Returns once the next block is ready.
  __device__ void wait_for_next() const {
    const int next = next_worker();
    mbarrier_wait(handover_.ready(next), next == 0 ? parity_ ^ 1 : parity_);
  }
  /// Gives the block back to its worker and goes on to the next one.
  __device__ void go_on() {
    mbarrier_arrive(handover_.through(worker_));
    worker_ = next_worker();
    if (worker_ == 0) parity_ ^= 1;
  }

 private:
  const ScanHandover& handover_;
  int worker_ = 0;
  int parity_ = 0;
};

template <typename T, int P, bool Channel>
constexpr int kScanBlock = precond_scan_block(P, std::is_same_v<T, __nv_bfloat16>, Channel);

/// Tokens of a round of the chain's loop.
template <int Tokens>
constexpr int kScanRound = Tokens < kScanChainGroup ? Tokens : kScanChainGroup;

/// One (sequence, value head), the work of a block.
template <int P>
struct ScanChain {
  int64_t first;   // token in the pack
  int64_t length;  // tokens
  int64_t state;   // row of the [S, HV, K] arrays
  int64_t block;   // row of the kept d of the first block
  int head;
  int key_head;
  int channel;  // first of this lane's; 0 where it has none
  bool active;  // whether the lane has channels

  __device__ ScanChain(const PrecondScanInputs& in, int block_tokens) {
    const int64_t sequence = in.order[blockIdx.x / in.num_value_heads];
    head = static_cast<int>(blockIdx.x % in.num_value_heads);
    key_head = head / (in.num_value_heads / in.num_key_heads);
    first = in.offsets[sequence];
    length = in.offsets[sequence + 1] - first;
    state = sequence * in.num_value_heads + head;
    block = first / block_tokens + sequence;
    active = scan_lane() * P < in.key_size;
    channel = active ? scan_lane() * P : 0;
  }
};

/// A lane's channels of a row in shared memory: [P / 4][lane][4], so that the accesses of a warp are
/// contiguous.
template <int P>
__device__ void put_row(float* row, const float (&values)[P]) {
  constexpr int kVector = P < 4 ? P : 4;
#pragma unroll
  for (int part = 0; part < P / kVector; ++part) {
    Row<float, kVector> vector;
#pragma unroll
    for (int i = 0; i < kVector; ++i) vector.value[i] = values[part * kVector + i];
    reinterpret_cast<Row<float, kVector>*>(row)[part * kWarpSize + scan_lane()] = vector;
  }
}
template <int P>
__device__ void get_row(float (&values)[P], const float* row) {
  constexpr int kVector = P < 4 ? P : 4;
#pragma unroll
  for (int part = 0; part < P / kVector; ++part) {
    const Row<float, kVector> vector =
        reinterpret_cast<const Row<float, kVector>*>(row)[part * kWarpSize + scan_lane()];
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[part * kVector + i] = vector.value[i];
  }
}

/// A lane's channels of the rows of a block of tokens, a group of them at a time while the next one is on its
/// way.
template <typename T, int P>
class RowStream {
 public:
  /// `count` (at least 1) rows from `at` on, `stride` numbers apart; beyond them the last again.
  __device__ RowStream(const T* at, int64_t stride, int count, bool active)
      : at_(at), stride_(stride), left_(count), active_(active) {
    load();
  }
  /// The next rows; zeros where the lane has no channels.
  __device__ void take(Row<T, P> (&rows)[kScanGroup], bool more) {
#pragma unroll
    for (int i = 0; i < kScanGroup; ++i) rows[i] = next_[i];
    if (more) load();
    if (!active_) {
#pragma unroll
      for (int i = 0; i < kScanGroup; ++i) rows[i] = {};
    }
  }

 private:
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kScanGroup; ++i) {
      next_[i] = load_row<T, P>(at_);
      at_ += --left_ > 0 ? stride_ : 0;
    }
  }

  const T* at_;
  int64_t stride_;
  int left_;
  bool active_;
  Row<T, P> next_[kScanGroup];
};

/// Sums over the warp in one integer instruction and without conversions: a lane adds its share to `shift`,
/// so large that the sum's last bit is the unit; the integer sum of the 32 bit patterns, read as a float, is
/// linear in the sum of the shares. The shares and their sum must stay within 2^22 units. All zero: plain
/// float sums by shuffles.
struct WarpSumScale {
  float shift;  // added to a lane's share before the sum
  float zero;   // what a sum of 0 reads as
  float unit;   // sum = (read - zero) * unit, exactly
};

/// The unit is 2^-bits, 16 <= bits <= 22 or 0.
__device__ inline WarpSumScale warp_sum_scale(bool fixed, int bits) {
  if (!fixed) return {0.0f, 0.0f, 1.0f};
  // 1.5 * 2^23 units, which leaves the sign of a share free, and 2^17 more: 32 times that keeps the mantissa
  // of the total positive.
  const uint32_t shift = 0x4b420000u - (static_cast<uint32_t>(bits) << 23);
  const uint32_t zero = shift * kWarpSize;
  const int exponent = static_cast<int>(zero >> 23) - 127;
  return {__uint_as_float(shift), __uint_as_float(zero),
          __uint_as_float(static_cast<uint32_t>(127 + 23 - exponent - bits) << 23)};
}

/// sum a[i] b[i] + shift, in a tree.
template <int P>
__device__ float shifted_dot(const float (&a)[P], const float (&b)[P], float shift) {
  if constexpr (P == 1) {
    return __fmaf_rn(a[0], b[0], shift);
  } else {
    float even = __fmul_rn(a[0], b[0]);
    float odd = __fmaf_rn(a[1], b[1], shift);
#pragma unroll
    for (int i = 2; i < P; i += 2) {
      even = __fmaf_rn(a[i], b[i], even);
      odd = __fmaf_rn(a[i + 1], b[i + 1], odd);
    }
    return __fadd_rn(even, odd);
  }
}

/// Total of shifted_dot over the warp, to be read by WarpSumScale.
template <bool Fixed>
__device__ float warp_total(float shifted) {
  if constexpr (Fixed) return __uint_as_float(__reduce_add_sync(kFullWarp, __float_as_uint(shifted)));
  return warp_sum(shifted);
}

/// The first `Half` values become those of this lane's half of the 2 * Half, summed over two lanes.
template <int Half, int Count>
__device__ void fold_values(float (&values)[Count]) {
  if constexpr (Half > 0) {
    const bool upper = (scan_lane() & Half) != 0;
#pragma unroll
    for (int i = 0; i < Half; ++i) {
      const float kept = upper ? values[i + Half] : values[i];
      const float given = upper ? values[i] : values[i + Half];
      values[i] = kept + __shfl_xor_sync(kFullWarp, given, Half);
    }
    fold_values<Half / 2>(values);
  }
}

/// Sums of `Count` (a power of two) values over the warp at once: lane l gets that of values[l % Count]. The
/// tree of additions is the same for every one of them.
template <int Count>
__device__ float warp_sums(float (&values)[Count]) {
  fold_values<Count / 2>(values);
  float sum = values[0];
#pragma unroll
  for (int distance = Count; distance < kWarpSize; distance *= 2)
    sum += __shfl_xor_sync(kFullWarp, sum, distance);
  return sum;
}

/// The unit key of a lane's channels, rounded to the keys' type, from the key as given.
template <typename T, int P>
__device__ Row<T, P> unit_key(const Row<T, P>& given, float rstd) {
  float key[P];
  given.unpack(key);
#pragma unroll
  for (int i = 0; i < P; ++i) key[i] = __fmul_rn(key[i], rstd);
  Row<T, P> rounded;
  rounded.pack(key);
  return rounded;
}

/// The step is gain - feedback * s (eq. 2, 3).
struct ScanCoefficients {
  float gain;
  float feedback;
};
__device__ inline ScanCoefficients scan_coefficients(const PrecondScanInputs& in, float beta, float plain) {
  const float rate = in.divide_by_key_norm ? in.step_size / (plain + kKeyNormEpsilon) : in.step_size;
  return in.beta_aware ? ScanCoefficients{rate * beta, rate * beta * beta} : ScanCoefficients{rate, rate};
}

/// What is kept of d (eq. 4) as retention * d + anchor: the anchor belonging to a retention.
__device__ inline float scan_anchor(float retention, bool anchored) {
  return anchored ? 1.0f - retention : 0.0f;
}
__device__ inline float proposed_d(float d, float x, float retention, float anchor, float step) {
  return __fmaf_rn(step, x, __fmaf_rn(retention, d, anchor));
}
__device__ inline float clipped(float d, const PrecondScanInputs& in) {
  return fminf(fmaxf(d, in.box_min), in.box_max);
}

/// Calls `call(T{}, std::integral_constant<int, P>, std::bool_constant<channel retention>)`.
template <typename Call>
void by_key(const PrecondScanInputs& in, const Call& call) {
  const auto by_retention = [&](auto type, auto channels) {
    if (in.channel_retention)
      call(type, channels, std::true_type{});
    else
      call(type, channels, std::false_type{});
  };
  const auto by_size = [&](auto type) {
    switch (precond_scan_channels(in.key_size)) {
      case 1:
        return by_retention(type, std::integral_constant<int, 1>{});
      case 2:
        return by_retention(type, std::integral_constant<int, 2>{});
      case 4:
        return by_retention(type, std::integral_constant<int, 4>{});
      default:
        return by_retention(type, std::integral_constant<int, 8>{});
    }
  };
  if (in.bf16)
    by_size(__nv_bfloat16{});
  else
    by_size(float{});
}

/// Launches `kernel(args, workers)`, a block a chain, with up to `most` workers, as many as the shared memory
/// of the device has slots for.
template <typename Slot, typename Args>
void launch_scan(void (*kernel)(Args, int), int warps, int most, const Args& args, CUstream_st* stream) {
  static_assert(sizeof(Slot) % kMbarrierBytes == 0);
  static_assert(3 * (sizeof(Slot) + ScanHandover::bytes(1)) <= 99 * 1024,
                "a worker for the block that the chain is at and for those before and behind it");
  constexpr int kBytes = static_cast<int>(sizeof(Slot)) + ScanHandover::bytes(1);
  const int64_t chains = args.in.num_sequences * args.in.num_value_heads;
  const int workers = std::min(shared_memory_limit() / kBytes, most);
  launch_kernel(kernel, static_cast<unsigned>(chains), warps * kWarpSize, workers * kBytes, args, workers,
                stream);
}

/// Of a block's shared memory, behind the slots.
template <typename Slot>
__device__ ScanHandover scan_handover(int workers) {
  return {dynamic_shared() + workers * static_cast<uint32_t>(sizeof(Slot)), workers};
}

}  // namespace osdn::kernels
