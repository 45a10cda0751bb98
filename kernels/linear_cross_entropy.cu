// Losses and gradients of rows of logits (docs/ops/linear_cross_entropy.md, eq. 1-3), a block a row. Where a
// row fits, it stays in registers between its maximum, its sum and its gradient: one read, one write; longer
// ones are read three times. Memory-bound. Any architecture from sm_80.
#include "kernels/linear_cross_entropy.h"

#include <cuda_bf16.h>

#include "base/cuda.h"
#include "kernels/common/warp.cuh"

namespace osdn::kernels {
namespace linear_cross_entropy_detail {
namespace {

constexpr float kInfinity = __builtin_huge_valf();

template <typename T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

/// A reduction over the block, the same bits in every thread. Called alternately with two buffers.
template <int Threads, typename Combine>
__device__ float block_reduce(float value, float (&buffer)[Threads / kWarpSize], const Combine& combine) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  if (threadIdx.x % kWarpSize == 0) buffer[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = buffer[0];
#pragma unroll
  for (int warp = 1; warp < Threads / kWarpSize; ++warp) value = combine(value, buffer[warp]);
  return value;
}

/// The thread's part of a row: `Held` vectors in registers, or none of them.
template <typename T, int Threads, int Held>
struct RowPart {
  static constexpr int V = kVector<T>;
  T* row;
  int64_t vocabulary;
  Row<T, V> held[Held > 0 ? Held : 1];

  __device__ void load() {
#pragma unroll
    for (int h = 0; h < Held; ++h) {
      const int64_t column = static_cast<int64_t>(h * Threads + threadIdx.x) * V;
      if (column < vocabulary) held[h] = load_row<T, V>(row + column);
    }
  }

  /// each(column, values) for all vectors; values right of the vocabulary are -infinity.
  template <typename Each>
  __device__ void for_each(const Each& each) const {
    const auto visit = [&](const Row<T, V>& vector, int64_t column) {
      float values[V];
      vector.unpack(values);
      if (column + V > vocabulary) {
#pragma unroll
        for (int i = 0; i < V; ++i)
          if (column + i >= vocabulary) values[i] = -kInfinity;
      }
      each(column, values);
    };
    if constexpr (Held > 0) {
#pragma unroll
      for (int h = 0; h < Held; ++h) {
        const int64_t column = static_cast<int64_t>(h * Threads + threadIdx.x) * V;
        if (column < vocabulary) visit(held[h], column);
      }
    } else {
      for (int64_t column = threadIdx.x * V; column < vocabulary; column += Threads * V)
        visit(load_row<T, V>(row + column), column);
    }
  }
};

template <typename T, int Threads, int Held>
__global__ void __launch_bounds__(Threads, 1024 / Threads)
    cross_entropy_kernel(const __grid_constant__ LinearCrossEntropyArgs args) {
  constexpr int V = kVector<T>;
  __shared__ float buffers[2][Threads / kWarpSize];
  const int64_t n = blockIdx.x;
  const int64_t target = args.targets[n];
  RowPart<T, Threads, Held> part{
      .row = static_cast<T*>(args.logits) + n * args.row_stride, .vocabulary = args.vocabulary, .held = {}};
  if (target == args.ignored) {
    if (threadIdx.x == 0 && args.loss != nullptr) args.loss[n] = 0;
    if (!args.gradient) return;
    const float zeros[V] = {};
    for (int64_t column = threadIdx.x * V; column < args.vocabulary; column += Threads * V)
      store_row<T, V>(part.row + column, zeros, true);
    return;
  }
  const bool in_range = target >= 0 && target < args.vocabulary;
  // Before any of the row is overwritten.
  const float at_target = in_range ? static_cast<float>(part.row[target]) : __int_as_float(0x7fc00000);
  part.load();
  float largest = -kInfinity;
  part.for_each([&](int64_t, const float(&values)[V]) {
#pragma unroll
    for (int i = 0; i < V; ++i) largest = fmaxf(largest, values[i]);
  });
  largest = block_reduce<Threads>(largest, buffers[0], [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  part.for_each([&](int64_t, const float(&values)[V]) {
#pragma unroll
    for (int i = 0; i < V; ++i) sum += __expf(values[i] - largest);
  });
  sum = block_reduce<Threads>(sum, buffers[1], [](float a, float b) { return a + b; });
  if (threadIdx.x == 0 && args.loss != nullptr)
    args.loss[n] = logf(sum) + (largest - at_target);  // (eq. 1, 2)
  if (!args.gradient) return;
  const float scale = args.scale != nullptr ? *args.scale : 1.0f;
  const float factor = scale / sum;
  part.for_each([&](int64_t column, const float(&values)[V]) {
    float gradient[V];
    const int64_t distance = target - column;
    const int hit = distance >= 0 && distance < V ? static_cast<int>(distance) : V;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      gradient[i] = factor * __expf(values[i] - largest);
      if (i == hit) gradient[i] -= scale;  // (eq. 3)
    }
    store_row<T, V>(part.row + column, gradient, true);
  });
}

template <typename T>
void launch_for(const LinearCrossEntropyArgs& args, CUstream_st* stream) {
  const auto rows = static_cast<unsigned>(args.num_rows);
  const int64_t vectors = (args.vocabulary + kVector<T> - 1) / kVector<T>;
  if (vectors <= 128)
    cross_entropy_kernel<T, 128, 1><<<rows, 128, 0, stream>>>(args);
  else if (vectors <= 512 * 8)
    cross_entropy_kernel<T, 512, 8><<<rows, 512, 0, stream>>>(args);
  else if (vectors <= 1024 * 8)
    cross_entropy_kernel<T, 1024, 8><<<rows, 1024, 0, stream>>>(args);
  else
    cross_entropy_kernel<T, 1024, 0><<<rows, 1024, 0, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace
}  // namespace linear_cross_entropy_detail

void launch(const LinearCrossEntropyArgs& args, CUstream_st* stream) {
  namespace detail = linear_cross_entropy_detail;
  const int64_t vector = args.bf16 ? 8 : 4;
  OSDN_CUDA_CHECK(args.row_stride % vector == 0 && args.row_stride >= args.vocabulary
                      ? cudaSuccess
                      : cudaErrorInvalidValue);
  if (args.num_rows == 0) return;
  if (args.bf16)
    detail::launch_for<__nv_bfloat16>(args, stream);
  else
    detail::launch_for<float>(args, stream);
}

}  // namespace osdn::kernels
