// What both passes of the preconditioner scan share on the device: where a warp's chain lies and how its rows
// are read.
#pragma once

#include "kernels/common/warp_chain.cuh"
#include "kernels/precond_scan.h"

namespace osdn::kernels {

/// One (sequence, value head) of the scan, the work of one block of one warp.
struct ScanChain {
  int64_t index;  // sequence * HV + head: row of the [S, HV, K] arrays
  int64_t begin;  // first token
  int64_t end;    // one past the last
  int64_t head;
  int lane;

  __device__ explicit ScanChain(const PrecondScanShape& shape)
      : index(blockIdx.x), head(index % shape.num_heads), lane(static_cast<int>(threadIdx.x)) {
    const int64_t sequence = index / shape.num_heads;
    begin = shape.offsets[sequence];
    end = shape.offsets[sequence + 1];
  }

  /// Row of a token in the [N, HV, ...] arrays.
  __device__ int64_t pair(const PrecondScanShape& shape, int64_t token) const {
    return shape.rows[token] * shape.num_heads + head;
  }
};

/// This lane's channels of row `row` of an [..., K] array, 0 beyond K.
template <int Parts>
__device__ void read_row(float (&out)[Parts], const float* array, int64_t row, int K, int lane) {
#pragma unroll
  for (int part = 0; part < Parts; ++part) {
    const int channel = part * kWarpSize + lane;
    out[part] = channel < K ? array[row * K + channel] : 0.0f;
  }
}

template <int Parts>
__device__ void write_row(float* array, const float (&values)[Parts], int64_t row, int K, int lane) {
#pragma unroll
  for (int part = 0; part < Parts; ++part) {
    const int channel = part * kWarpSize + lane;
    if (channel < K) array[row * K + channel] = values[part];
  }
}

/// The retention of one token: per channel, per head, or 1 where there is none.
template <int Parts>
__device__ void read_retention(float (&out)[Parts], const float* retention, bool per_channel, int64_t pair,
                               int K, int lane) {
  if (per_channel) {
    read_row(out, retention, pair, K, lane);
    return;
  }
  const float shared = retention ? retention[pair] : 1.0f;
#pragma unroll
  for (int part = 0; part < Parts; ++part) out[part] = shared;
}

}  // namespace osdn::kernels
