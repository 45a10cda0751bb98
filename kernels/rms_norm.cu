// RMS normalisation (docs/ops/rms_norm.md, eq. 1-6). L lanes hold a row, C vectors of 16 bytes each; a block
// of 256 threads takes 256 / L rows at a time and goes on with a stride of the grid, the weight in shared
// memory. The grid depends on the sizes alone, so that the sums of the weight's gradient have one order:
// a lane over its rows, the row groups of a block, then the blocks. Memory-bound: every array read or written
// once. Any architecture from sm_80.
#include "kernels/rms_norm.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "base/cuda.h"
#include "kernels/common/activation.cuh"
#include "kernels/common/warp.cuh"
#include "kernels/detail/column_sum.cuh"

namespace osdn::kernels {
namespace rms_norm_detail {
namespace {

constexpr int kThreads = 256;

template <typename T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

/// How a row lies on the lanes.
template <typename T, int Lanes, int Vectors>
struct Shape {
  using Type = T;
  static constexpr int L = Lanes;
  static constexpr int C = Vectors;
  static constexpr int V = kVector<T>;
  static constexpr int kGroups = kThreads / L;  // rows of a block at a time
  // Blocks that an H200 holds at once.
  static constexpr int kForwardBlocks = 132 * (C == 1 ? 6 : 3);
  static constexpr int kBackwardBlocks = 132 * (C == 1 ? 6 : 2);
  static int64_t blocks(int64_t num_rows, int most) {
    return std::clamp<int64_t>((num_rows + kGroups - 1) / kGroups, 1, most);
  }
};

/// Sum over the L lanes of a row, the same bits in all of them. `buffer`: one of two that alternate from call
/// to call, so that one barrier a call is enough.
template <typename S>
__device__ float row_sum(float value, float (&buffer)[kThreads / kWarpSize]) {
#pragma unroll
  for (int distance = (S::L < kWarpSize ? S::L : kWarpSize) / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  if constexpr (S::L > kWarpSize) {
    constexpr int kWarps = S::L / kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    if (threadIdx.x % kWarpSize == 0) buffer[warp] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) value += buffer[warp / kWarps * kWarps + w];
  }
  return value;
}

/// The thread's place: its row group and the columns of its vectors.
template <typename S>
struct Place {
  int64_t width;
  int group = static_cast<int>(threadIdx.x) / S::L;
  int lane = static_cast<int>(threadIdx.x) % S::L;

  __device__ int column(int c) const { return (c * S::L + lane) * S::V; }
  __device__ bool holds(int c) const { return column(c) < width; }
};

__device__ inline void load_weight(const float* weight, int64_t width, float* shared) {
  for (int64_t i = threadIdx.x; i < width; i += kThreads) shared[i] = weight[i];
  __syncthreads();
}

/// A row of an array as it lies in memory, in bf16 half the registers of fp32.
template <typename S>
struct HeldRow {
  using T = typename S::Type;
  Row<T, S::V> vectors[S::C];

  /// Nothing where the array is absent or there is no such row. One branch for all vectors, so that they are
  /// on their way together.
  __device__ void load(const void* array, int64_t row, int64_t num_rows, const Place<S>& place) {
    if (array == nullptr || row >= num_rows) return;
    const T* source = static_cast<const T*>(array) + row * place.width;
#pragma unroll
    for (int c = 0; c < S::C; ++c)
      if (place.holds(c)) vectors[c] = load_row<T, S::V>(source + place.column(c));
  }
};

/// Calls row(held, index of the row) for the rows of a row group, with what fetch(held, index) has loaded:
/// where registers allow it, one row ahead. All threads of a block make the same calls.
template <typename S, typename Held, typename Fetch, typename EachRow>
__device__ void for_rows(int64_t num_rows, const Place<S>& place, const Fetch& fetch, const EachRow& each) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * S::kGroups;
  int64_t first = static_cast<int64_t>(blockIdx.x) * S::kGroups;
  if constexpr (S::C == 1) {
    Held next;
    fetch(next, first + place.group);
    for (; first < num_rows; first += stride) {
      const Held held = next;
      fetch(next, first + stride + place.group);
      each(held, first + place.group);
    }
  } else {
    for (; first < num_rows; first += stride) {
      Held held;
      fetch(held, first + place.group);
      each(held, first + place.group);
    }
  }
}

template <typename S>
__device__ void store(void* array, int64_t row, const Place<S>& place, int c, const float (&values)[S::V]) {
  using T = typename S::Type;
  store_row<T, S::V>(static_cast<T*>(array) + row * place.width + place.column(c), values, true);
}

template <typename S>
struct ForwardHeld {
  HeldRow<S> x, residual, gate;
};

template <typename S, bool Gated>
__global__ void __launch_bounds__(kThreads, Gated ? 2 : 3)
    forward_kernel(const __grid_constant__ RmsNormForwardArgs args) {
  using T = typename S::Type;
  extern __shared__ float weight[];  // [D]
  __shared__ float sums[2][kThreads / kWarpSize];
  const RmsNormInputs& in = args.in;
  const Place<S> place{.width = in.width};
  load_weight(in.weight, in.width, weight);
  const auto fetch = [&](ForwardHeld<S>& held, int64_t row) {
    held.x.load(in.x, row, in.num_rows, place);
    held.residual.load(args.residual, row, in.num_rows, place);
    if constexpr (Gated) held.gate.load(in.gate, row, in.num_rows, place);
  };
  int turn = 0;
  for_rows<S, ForwardHeld<S>>(in.num_rows, place, fetch, [&](const ForwardHeld<S>& held, int64_t row) {
    const bool valid = row < in.num_rows;
    float z[S::C][S::V] = {};
    float squares = 0;
#pragma unroll
    for (int c = 0; c < S::C; ++c) {
      if (!valid || !place.holds(c)) continue;
      held.x.vectors[c].unpack(z[c]);
      if (args.residual != nullptr) {
        float other[S::V];
        held.residual.vectors[c].unpack(other);
#pragma unroll
        for (int i = 0; i < S::V; ++i) {
          z[c][i] += other[i];
          if (args.round_sum) z[c][i] = static_cast<float>(static_cast<T>(z[c][i]));
        }
      }
#pragma unroll
      for (int i = 0; i < S::V; ++i) squares = fmaf(z[c][i], z[c][i], squares);
    }
    squares = row_sum<S>(squares, sums[turn]);
    turn ^= 1;
    const float rstd = rsqrtf(squares / static_cast<float>(in.width) + args.eps);  // (eq. 1)
    if (!valid) return;
    if (place.lane == 0) args.rstd[row] = rstd;
#pragma unroll
    for (int c = 0; c < S::C; ++c) {
      if (!place.holds(c)) continue;
      if (args.residual != nullptr) store(args.sum, row, place, c, z[c]);
      [[maybe_unused]] float gate[S::V];
      if constexpr (Gated) held.gate.vectors[c].unpack(gate);
      float y[S::V];
#pragma unroll
      for (int i = 0; i < S::V; ++i) {
        y[i] = z[c][i] * rstd * weight[place.column(c) + i];  // (eq. 2)
        if constexpr (Gated) y[i] *= in.swish ? gate[i] * sigmoid(gate[i]) : sigmoid(gate[i]);
      }
      store(args.y, row, place, c, y);
    }
  });
}

template <typename S>
struct BackwardHeld {
  HeldRow<S> x, dn, sum, gate;  // dn: upstream of the norm, before the weight
  float rstd;
};

template <typename S, bool Gated>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(const __grid_constant__ RmsNormBackwardArgs args) {
  extern __shared__ float weight[];  // [D], then the block's sum of the weight's gradient
  __shared__ float sums[2][kThreads / kWarpSize];
  const RmsNormInputs& in = args.in;
  const Place<S> place{.width = in.width};
  load_weight(in.weight, in.width, weight);
  float d_weight[S::C][S::V] = {};
  const auto fetch = [&](BackwardHeld<S>& held, int64_t row) {
    held.x.load(in.x, row, in.num_rows, place);
    held.dn.load(args.d_y, row, in.num_rows, place);
    held.sum.load(args.d_sum, row, in.num_rows, place);
    if constexpr (Gated) held.gate.load(in.gate, row, in.num_rows, place);
    held.rstd = row < in.num_rows ? args.rstd[row] : 0.0f;
  };
  int turn = 0;
  for_rows<S, BackwardHeld<S>>(in.num_rows, place, fetch, [&](const BackwardHeld<S>& held, int64_t row) {
    const bool valid = row < in.num_rows;
    const float rstd = held.rstd;
    float dot = 0;
    float gate_factor[Gated ? S::C : 1][S::V];  // act(gate)
#pragma unroll
    for (int c = 0; c < S::C; ++c) {
      if (!valid || !place.holds(c)) continue;
      float normalized[S::V];
      float dn[S::V];
      held.x.vectors[c].unpack(normalized);
      held.dn.vectors[c].unpack(dn);
#pragma unroll
      for (int i = 0; i < S::V; ++i) normalized[i] *= rstd;
      if constexpr (Gated) {
        float gate[S::V];
        float d_gate[S::V];
        held.gate.vectors[c].unpack(gate);
#pragma unroll
        for (int i = 0; i < S::V; ++i) {
          const float s = sigmoid(gate[i]);
          const float slope = in.swish ? silu_slope(gate[i], s) : s * (1.0f - s);
          d_gate[i] = dn[i] * normalized[i] * weight[place.column(c) + i] * slope;  // (eq. 6)
          gate_factor[c][i] = in.swish ? gate[i] * s : s;
          dn[i] *= gate_factor[c][i];  // (eq. 5)
        }
        store(args.d_gate, row, place, c, d_gate);
      }
#pragma unroll
      for (int i = 0; i < S::V; ++i) {
        d_weight[c][i] = fmaf(dn[i], normalized[i], d_weight[c][i]);  // (eq. 4)
        dot = fmaf(dn[i] * weight[place.column(c) + i], normalized[i], dot);
      }
    }
    const float mean = row_sum<S>(dot, sums[turn]) / static_cast<float>(in.width);
    turn ^= 1;
    if (!valid) return;
#pragma unroll
    for (int c = 0; c < S::C; ++c) {
      if (!place.holds(c)) continue;
      float normalized[S::V];
      float dx[S::V];
      held.x.vectors[c].unpack(normalized);
      held.dn.vectors[c].unpack(dx);
      float d_sum[S::V] = {};
      if (args.d_sum != nullptr) held.sum.vectors[c].unpack(d_sum);
#pragma unroll
      for (int i = 0; i < S::V; ++i) {
        float weighted = dx[i] * weight[place.column(c) + i];
        if constexpr (Gated) weighted *= gate_factor[c][i];
        dx[i] = fmaf(rstd, weighted - normalized[i] * rstd * mean, d_sum[i]);  // (eq. 3)
      }
      store(args.d_x, row, place, c, dx);
    }
  });
  // The weight is not needed any more. Row groups add one after the other.
  for (int group = 0; group < S::kGroups; ++group) {
    __syncthreads();
    if (place.group != group) continue;
#pragma unroll
    for (int c = 0; c < S::C; ++c) {
      if (!place.holds(c)) continue;
#pragma unroll
      for (int i = 0; i < S::V; ++i) {
        float& sum = weight[place.column(c) + i];
        sum = group == 0 ? d_weight[c][i] : sum + d_weight[c][i];
      }
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < in.width; i += kThreads)
    args.partials[blockIdx.x * in.width + i] = weight[i];
}

/// Calls run(Shape<...>()) for the narrowest shape that holds a row.
template <typename Run>
auto dispatch(int64_t width, bool bf16, const Run& run) {
  const auto by_width = [&](auto zero) {
    using T = decltype(zero);
    const int64_t vectors = width / kVector<T>;
    if (vectors <= 16) return run(Shape<T, 16, 1>());
    if (vectors <= 32) return run(Shape<T, 32, 1>());
    if (vectors <= 128) return run(Shape<T, 32, 4>());
    if (vectors <= 256) return run(Shape<T, 64, 4>());
    return run(Shape<T, 256, 4>());
  };
  if (bf16) return by_width(__nv_bfloat16());
  return by_width(float());
}

void check_width(const RmsNormInputs& in) {
  const int64_t vector = in.bf16 ? kVector<__nv_bfloat16> : kVector<float>;
  const bool fits = in.width > 0 && in.width % vector == 0 && in.width <= rms_norm_max_width(in.bf16);
  OSDN_CUDA_CHECK(fits ? cudaSuccess : cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rms_norm_detail

int64_t rms_norm_num_partials(int64_t num_rows, int64_t width, bool bf16) {
  return rms_norm_detail::dispatch(width, bf16, [&](auto shape) {
    using S = decltype(shape);
    return S::blocks(num_rows, S::kBackwardBlocks);
  });
}

void launch(const RmsNormForwardArgs& args, CUstream_st* stream) {
  namespace detail = rms_norm_detail;
  detail::check_width(args.in);
  if (args.in.num_rows == 0) return;
  detail::dispatch(args.in.width, args.in.bf16, [&](auto shape) {
    using S = decltype(shape);
    const auto blocks = static_cast<unsigned>(S::blocks(args.in.num_rows, S::kForwardBlocks));
    const auto bytes = static_cast<size_t>(args.in.width) * sizeof(float);
    const auto kernel =
        args.in.gate != nullptr ? detail::forward_kernel<S, true> : detail::forward_kernel<S, false>;
    kernel<<<blocks, detail::kThreads, bytes, stream>>>(args);
  });
  OSDN_CUDA_CHECK(cudaGetLastError());
}

void launch(const RmsNormBackwardArgs& args, CUstream_st* stream) {
  namespace detail = rms_norm_detail;
  detail::check_width(args.in);
  detail::dispatch(args.in.width, args.in.bf16, [&](auto shape) {
    using S = decltype(shape);
    const auto blocks = static_cast<unsigned>(S::blocks(args.in.num_rows, S::kBackwardBlocks));
    const auto bytes = static_cast<size_t>(args.in.width) * sizeof(float);
    const auto kernel =
        args.in.gate != nullptr ? detail::backward_kernel<S, true> : detail::backward_kernel<S, false>;
    kernel<<<blocks, detail::kThreads, bytes, stream>>>(args);
  });
  OSDN_CUDA_CHECK(cudaGetLastError());
  launch_column_sum(args.partials, rms_norm_num_partials(args.in.num_rows, args.in.width, args.in.bf16),
                    args.in.width, args.d_weight, args.accumulate, stream);
}

}  // namespace osdn::kernels
