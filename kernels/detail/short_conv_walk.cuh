// What forward and backward of the short convolution share: a thread's walk over the tokens of its channels
// with the last inputs in registers, and its turn from one sequence to the next.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "base/cuda.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/warp.cuh"
#include "kernels/short_conv.h"

namespace osdn::kernels::short_conv_detail {

constexpr int V = kShortConvChannels;
constexpr int kThreads = 128;

/// Rows on their way to the threads of a warp, copied asynchronously into shared memory, kStages - 1 batches
/// ahead of the one that is worked on. Each thread copies its own numbers, or where rows are aligned to 16
/// bytes, every second row of its own and its neighbour's.
template <typename T, int Arrays>
struct RowQueue {
  static constexpr int kBytes = V * static_cast<int>(sizeof(T));
  static constexpr int kStages = 4;
  static constexpr int kRows = 128 / kBytes;  // a thread's: 128 bytes an array
  static constexpr int kBatch = kRows / kStages;
  struct Storage {
    alignas(16) T rows[Arrays][kRows][kThreads][V];
  };

  Storage& storage;
  const T* arrays[Arrays];  // at the first row and the thread's channels; null: not copied
  int64_t strides[Arrays];
  int num_rows;
  bool wide;       // two threads a copy
  unsigned lanes;  // of the warp that take part

  /// Row u of a batch.
  __device__ T* place(int array, int batch, int u) {
    return storage.rows[array][batch % kStages * kBatch + u][threadIdx.x];
  }

  __device__ void request(int batch) {
    const int lane = static_cast<int>(threadIdx.x) % 2;
#pragma unroll
    for (int a = 0; a < Arrays; ++a) {
      if (arrays[a] == nullptr) continue;
      if (kBytes == 16 || !wide) {
#pragma unroll
        for (int u = 0; u < kBatch; ++u)
          if (batch * kBatch + u < num_rows)
            copy_async<kBytes>(place(a, batch, u), arrays[a] + (batch * kBatch + u) * strides[a]);
      } else {
#pragma unroll
        for (int u = 0; u < kBatch; u += 2) {
          const int row = batch * kBatch + u + lane;
          if (row < num_rows)
            copy_async<16>(place(a, batch, u + lane) - lane * V, arrays[a] + row * strides[a] - lane * V);
        }
      }
    }
    copy_async_commit();
  }

  __device__ void start() {
    for (int batch = 0; batch + 1 < kStages; ++batch) request(batch);
  }

  /// Requests the batch that comes kStages - 1 later and waits for this one.
  __device__ void advance(int batch) {
    __syncwarp(lanes);  // the places of the next batch have been read
    request(batch + kStages - 1);
    copy_async_wait<kStages - 1>();
    __syncwarp(lanes);
  }

 private:
  template <int Bytes>
  static __device__ void copy_async(T* target, const T* source) {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(target));
    if constexpr (Bytes == 16)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(address), "l"(source) : "memory");
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(address), "l"(source), "n"(Bytes)
                   : "memory");
  }
};

/// The last sequence that begins at or before `token`: it holds the token. All lanes of a warp take part, 32
/// bounds a step.
__device__ inline int64_t sequence_of(const int64_t* offsets, int64_t num_sequences, int64_t token) {
  const int64_t lane = threadIdx.x % kWarpSize;
  int64_t low = 0;  // offsets[low] <= token < offsets[high]
  int64_t high = num_sequences;
  while (high - low > 1) {
    const int64_t step = (high - low + kWarpSize - 1) / kWarpSize;
    const int64_t probe = low + lane * step;
    const bool before = probe < high && offsets[probe] <= token;
    low += (__popc(__ballot_sync(0xffffffffu, before)) - 1) * step;
    high = min(high, low + step);
  }
  return low;
}

template <typename T>
__device__ float load_one(const void* source, int64_t index) {
  return static_cast<float>(static_cast<const T*>(source)[index]);
}

template <typename T>
__device__ void load_vector(const void* source, int64_t index, float (&out)[V]) {
  load_row<T, V>(static_cast<const T*>(source) + index).unpack(out);
}

template <typename T, int W>
struct Walk {
  const ShortConvInputs& in;
  int64_t channel;         // the first of the thread's V
  int64_t sequence;        // the walk is in
  int64_t begin;           // first token of the sequence
  int64_t end;             // one past its last
  float window[W - 1][V];  // inputs of the tokens before, oldest first

  /// At `token` of a sequence that holds it.
  __device__ Walk(const ShortConvInputs& inputs, int64_t first_channel, int64_t its_sequence, int64_t token)
      : in(inputs),
        channel(first_channel),
        sequence(its_sequence),
        begin(inputs.offsets[its_sequence]),
        end(inputs.offsets[its_sequence + 1]) {
    fill(token);
  }

  /// To the sequence that begins where this one ends; there must be one with tokens.
  __device__ void next_sequence() {
    begin = end;
    do {
      ++sequence;
      end = in.offsets[sequence + 1];
    } while (end == begin);
    fill(begin);
  }

  /// The window before `token`: inputs, and left of the sequence its history or zeros.
  __device__ void fill(int64_t token) {
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      const int64_t source = token - (W - 1) + j;
      if (source >= begin) {
        load_vector<T>(in.x, source * in.x_stride + channel, window[j]);
        continue;
      }
#pragma unroll
      for (int i = 0; i < V; ++i)
        window[j][i] = in.history == nullptr
                           ? 0.0f
                           : load_one<T>(in.history, state_index(i, W + static_cast<int>(source - begin)));
    }
  }

  /// Of channel `channel + i` in a state [S, D, W].
  __device__ int64_t state_index(int i, int slot) const {
    return (sequence * in.num_channels + channel + i) * W + slot;
  }

  /// The sum over the taps at the token with input x (eq. 1).
  __device__ float filter(const float (&taps)[W][V], const float (&x)[V], int i) const {
    float sum = taps[0][i] * window[0][i];
#pragma unroll
    for (int j = 1; j < W - 1; ++j) sum = fmaf(taps[j][i], window[j][i], sum);
    return fmaf(taps[W - 1][i], x[i], sum);
  }

  __device__ void push(const float (&x)[V]) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
#pragma unroll
      for (int j = 0; j + 1 < W - 1; ++j) window[j][i] = window[j + 1][i];
      window[W - 2][i] = x[i];
    }
  }
};

/// taps[j][i] = weight[channel + i, j]
template <int W>
__device__ void load_taps(const ShortConvInputs& in, int64_t channel, float (&taps)[W][V]) {
#pragma unroll
  for (int i = 0; i < V; ++i)
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const int64_t index = (channel + i) * W + j;
      taps[j][i] =
          in.weight_bf16 ? load_one<__nv_bfloat16>(in.weight, index) : load_one<float>(in.weight, index);
    }
}

/// Whether two threads' numbers of every row are aligned to 16 bytes.
inline bool pairs_aligned(const void* rows, int64_t stride) {
  return reinterpret_cast<uintptr_t>(rows) % 16 == 0 && stride % (2 * V) == 0;
}

inline void check_sizes(const ShortConvInputs& in) {
  const bool fit = in.num_channels % V == 0 && in.x_stride % V == 0 && in.num_taps >= kShortConvMinTaps &&
                   in.num_taps <= kShortConvMaxTaps;
  OSDN_CUDA_CHECK(fit ? cudaSuccess : cudaErrorInvalidValue);
}

inline dim3 walk_grid(const ShortConvInputs& in, int64_t tile) {
  const int64_t per_block = int64_t{kThreads} * V;
  return dim3(static_cast<unsigned>((in.num_tokens + tile - 1) / tile),
              static_cast<unsigned>((in.num_channels + per_block - 1) / per_block));
}

/// Calls run(T{}, integral_constant<int, W>) for the types and taps of the inputs.
template <typename Run>
void dispatch(const ShortConvInputs& in, const Run& run) {
  const auto by_taps = [&](auto zero) {
    if (in.num_taps == 2) return run(zero, std::integral_constant<int, 2>());
    if (in.num_taps == 3) return run(zero, std::integral_constant<int, 3>());
    return run(zero, std::integral_constant<int, 4>());
  };
  if (in.bf16) return by_taps(__nv_bfloat16());
  return by_taps(float());
}

}  // namespace osdn::kernels::short_conv_detail
