// Forward of the short convolution (docs/ops/short_conv.md, eq. 1-2). Grid: (token tiles, channel blocks); a
// thread owns four neighbouring channels and walks over the tokens of its tile with the last W - 1 inputs in
// registers and the next ones on their way to shared memory. Memory-bound: x read once, y written once. Any
// architecture from sm_80.
#include <cuda_bf16.h>

#include <type_traits>

#include "base/cuda.h"
#include "kernels/common/activation.cuh"
#include "kernels/detail/short_conv_walk.cuh"

namespace osdn::kernels {
namespace short_conv_detail {
namespace {

constexpr int64_t kForwardTile = 64;

template <typename T, int W>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const __grid_constant__ ShortConvForwardArgs args, bool wide) {
  using Queue = RowQueue<T, 1>;
  __shared__ typename Queue::Storage storage;
  const ShortConvInputs& in = args.in;
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * V;
  const int64_t first = blockIdx.x * kForwardTile;
  const int num_rows = static_cast<int>(min(in.num_tokens - first, kForwardTile));
  const int64_t sequence = sequence_of(in.offsets, in.num_sequences, first);
  const unsigned lanes = __ballot_sync(0xffffffffu, channel < in.num_channels);
  if (channel >= in.num_channels) return;
  Queue queue{.storage = storage,
              .arrays = {static_cast<const T*>(in.x) + first * in.x_stride + channel},
              .strides = {in.x_stride},
              .num_rows = num_rows,
              .wide = wide,
              .lanes = lanes};
  queue.start();
  float taps[W][V];
  load_taps<W>(in, channel, taps);
  Walk<T, W> walk(in, channel, sequence, first);
  T* y = static_cast<T*>(args.y) + first * in.num_channels + channel;
  const auto one_row = [&](int batch, int u) {
    float input[V];
    float output[V];
    load_row<T, V>(queue.place(0, batch, u)).unpack(input);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float sum = walk.filter(taps, input, i);
      output[i] = in.silu ? sum * sigmoid(sum) : sum;  // (eq. 2)
    }
    walk.push(input);
    store_row<T, V>(y, output, true);
    y += in.num_channels;
  };
  for (int batch = 0; batch * Queue::kBatch < num_rows; ++batch) {
    queue.advance(batch);
    const int row = batch * Queue::kBatch;
    if (row + Queue::kBatch <= num_rows && first + row + Queue::kBatch <= walk.end) {  // in one sequence
#pragma unroll
      for (int u = 0; u < Queue::kBatch; ++u) one_row(batch, u);
      continue;
    }
    for (int u = 0; u < Queue::kBatch && row + u < num_rows; ++u) {
      if (first + row + u == walk.end) walk.next_sequence();
      one_row(batch, u);
    }
  }
}

/// The last W inputs of every sequence; a thread a (sequence, channel).
template <typename T, int W>
__global__ void __launch_bounds__(kThreads)
    final_state_kernel(const __grid_constant__ ShortConvForwardArgs args) {
  const ShortConvInputs& in = args.in;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= in.num_sequences * in.num_channels) return;
  const int64_t sequence = index / in.num_channels;
  const int64_t channel = index % in.num_channels;
  const int64_t begin = in.offsets[sequence];
  const int64_t end = in.offsets[sequence + 1];
  const T* x = static_cast<const T*>(in.x);
  const T* history = static_cast<const T*>(in.history);
  T* state = static_cast<T*>(args.final_state) + index * W;
#pragma unroll
  for (int slot = 0; slot < W; ++slot) {
    const int64_t token = end - W + slot;
    if (token >= begin)
      state[slot] = x[token * in.x_stride + channel];
    else
      state[slot] = history == nullptr ? T(0.0f) : history[index * W + slot + (end - begin)];
  }
}

}  // namespace
}  // namespace short_conv_detail

void launch(const ShortConvForwardArgs& args, CUstream_st* stream) {
  namespace detail = short_conv_detail;
  const ShortConvInputs& in = args.in;
  detail::check_sizes(in);
  detail::dispatch(in, [&](auto zero, auto taps) {
    using T = decltype(zero);
    constexpr int W = decltype(taps)::value;
    if (in.num_tokens > 0 && in.num_channels > 0)
      detail::forward_kernel<T, W>
          <<<detail::walk_grid(in, detail::kForwardTile), detail::kThreads, 0, stream>>>(
              args, in.num_channels % (2 * detail::V) == 0 && detail::pairs_aligned(in.x, in.x_stride));
    const int64_t states = in.num_sequences * in.num_channels;
    if (states > 0)
      detail::final_state_kernel<T, W>
          <<<static_cast<unsigned>((states + detail::kThreads - 1) / detail::kThreads), detail::kThreads, 0,
             stream>>>(args);
  });
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
