// What both passes of the preconditioner scan share on the device: where a warp's chain lies, what a token
// brings, and the update of d, which the reverse pass repeats bit for bit to know where the clip was active.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "base/cuda.h"
#include "kernels/common/warp.cuh"
#include "kernels/precond_scan.h"

namespace osdn::kernels {

/// Tokens that are loaded together, a group ahead of the one in work: hides the latency of memory behind the
/// chain of dependent steps, as far as the registers go.
template <typename Token>
constexpr int kScanGroup = sizeof(Token) <= 40   ? 8
                           : sizeof(Token) <= 64 ? 6
                           : sizeof(Token) <= 88 ? 4
                                                 : 2;

/// One (sequence, value head), the work of a block of one warp.
template <int P>
struct ScanChain {
  int64_t first;  // token in the pack
  int length;     // tokens
  int64_t state;  // row of the [S, HV, K] arrays
  int head;
  int key_head;
  int channel;  // first of this lane's; of the first lane's, to be read only, where it has none
  bool active;  // whether the lane has channels

  __device__ explicit ScanChain(const PrecondScanInputs& in) {
    const int64_t sequence = in.order[blockIdx.x / in.num_value_heads];
    head = static_cast<int>(blockIdx.x % in.num_value_heads);
    key_head = head / (in.num_value_heads / in.num_key_heads);
    first = in.offsets[sequence];
    length = static_cast<int>(in.offsets[sequence + 1] - first);
    state = sequence * in.num_value_heads + head;
    active = static_cast<int>(threadIdx.x) * P < in.key_size;
    channel = active ? static_cast<int>(threadIdx.x) * P : 0;
  }
};

/// An array walked token by token: where one token's part lies, and how far the next one's.
template <typename T>
struct Walk {
  T* at = nullptr;
  int64_t stride = 0;  // in T

  __device__ void step(bool more) { at += more ? stride : 0; }
};

/// This lane's channels of [N, heads, K] rows, from token `token` of the chain in steps of `direction`.
template <typename T, int P>
__device__ Walk<const T> walk_rows(const PrecondScanRows& rows, const ScanChain<P>& chain, int head,
                                   int token, int direction) {
  return {static_cast<const T*>(rows.data) + (chain.first + token) * rows.token_stride +
              head * rows.head_stride + chain.channel,
          direction * rows.token_stride};
}

/// The same of a contiguous [N, HV, width] array, from column `column`.
template <typename T, int P>
__device__ Walk<T> walk_array(T* array, const PrecondScanInputs& in, const ScanChain<P>& chain, int width,
                              int column, int token, int direction) {
  return {array + ((chain.first + token) * in.num_value_heads + chain.head) * width + column,
          static_cast<int64_t>(direction) * in.num_value_heads * width};
}

/// The retention of a lane's channels: P numbers a token with channel retention, else one. Without retention
/// it reads what `stand_in` holds, so that loads need no condition.
template <int P, bool Channel>
struct RetentionWalk {
  Walk<const float> walk;
  bool given;

  __device__ RetentionWalk(const PrecondScanInputs& in, const ScanChain<P>& chain, const void* stand_in,
                           int token, int direction)
      : walk(walk_array<const float>(in.retention, in, chain, Channel ? in.key_size : 1,
                                     Channel ? chain.channel : 0, token, direction)),
        given(in.retention != nullptr) {
    if (!given) walk = {static_cast<const float*>(stand_in), 0};
  }

  __device__ Row<float, Channel ? P : 1> load() const {
    return load_row < float, Channel ? P : 1 > (walk.at);
  }
  /// Of channel `i`, from what load() gave.
  __device__ float of(const Row<float, Channel ? P : 1>& row, int i) const {
    return given ? row.value[Channel ? i : 0] : 1.0f;
  }
};

/// The unit key of a lane's channels, rounded to the keys' type, and its squares, from the key as given.
template <typename T, int P>
__device__ void unit_key(float (&key)[P], float (&x)[P], const Row<T, P>& given, float rstd) {
  given.unpack(key);
#pragma unroll
  for (int i = 0; i < P; ++i) key[i] = __fmul_rn(key[i], rstd);
  Row<T, P> rounded;
  rounded.pack(key);
  rounded.unpack(key);
#pragma unroll
  for (int i = 0; i < P; ++i) x[i] = __fmul_rn(key[i], key[i]);
}

__device__ inline float scan_step(const PrecondScanCoefficients& c, float s) {
  return __fmaf_rn(-c.feedback, s, c.gain);
}

/// d of the next token before its clip (eq. 4, 5).
__device__ inline float proposed_d(float d, float x, float retention, float step, bool anchored) {
  const float kept = anchored ? __fmaf_rn(retention, __fadd_rn(d, -1.0f), 1.0f) : __fmul_rn(retention, d);
  return __fmaf_rn(step, x, kept);
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

}  // namespace osdn::kernels
