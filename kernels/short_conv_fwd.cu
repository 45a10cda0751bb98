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
    forward_kernel(const __grid_constant__ ShortConvForwardArgs args) {
  using Queue = RowQueue<T, 1>;
  __shared__ typename Queue::Storage storage;
  const ShortConvInputs& in = args.in;
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * V;
  const int64_t first = blockIdx.x * kForwardTile;
  const int64_t last = min(in.num_tokens, first + kForwardTile);
  const bool active = channel < in.num_channels;
  Queue queue{.storage = storage,
              .arrays = {active ? static_cast<const T*>(in.x) + first * in.x_stride + channel : nullptr},
              .strides = {in.x_stride},
              .num_rows = last - first};
  queue.start();
  const int64_t sequence = sequence_of(in.offsets, in.num_sequences, first);
  if (!active) return;
  float taps[W][V];
  load_taps<W>(in, channel, taps);
  Walk<T, W> walk(in, channel, sequence, first);
  T* y = static_cast<T*>(args.y) + channel;
  for (int64_t batch = 0; batch * Queue::kBatch < last - first; ++batch) {
    queue.advance(batch);
#pragma unroll
    for (int u = 0; u < Queue::kBatch; ++u) {
      const int64_t token = first + batch * Queue::kBatch + u;
      if (token >= last) break;
      if (token == walk.end) walk.next_sequence();
      float input[V];
      float output[V];
      load_row<T, V>(queue.place(0, batch, u)).unpack(input);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float sum = walk.filter(taps, input, i);
        output[i] = in.silu ? sum * sigmoid(sum) : sum;  // (eq. 2)
      }
      walk.push(input);
      store_row<T, V>(y + token * in.num_channels, output, true);
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
          <<<detail::walk_grid(in, detail::kForwardTile), detail::kThreads, 0, stream>>>(args);
    const int64_t states = in.num_sequences * in.num_channels;
    if (states > 0)
      detail::final_state_kernel<T, W>
          <<<static_cast<unsigned>((states + detail::kThreads - 1) / detail::kThreads), detail::kThreads, 0,
             stream>>>(args);
  });
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
