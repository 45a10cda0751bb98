// Backward of the short convolution (docs/ops/short_conv.md, eq. 3-6). A thread walks over the tokens of a
// tile like forward and W - 1 tokens beyond it, recomputes the sums, and keeps the input gradients of the
// last W - 1 tokens open in registers until no later token of their sequence adds to them. Weight gradients:
// fp32 sums of a tile to `partials`, then summed in a fixed order. Memory-bound: x and dy read once, dx
// written once, 4 D W bytes of partials a tile written and read. Any architecture from sm_80.
#include <cuda_bf16.h>

#include <type_traits>

#include "base/cuda.h"
#include "kernels/common/activation.cuh"
#include "kernels/detail/column_sum.cuh"
#include "kernels/detail/short_conv_walk.cuh"

namespace osdn::kernels {
namespace short_conv_detail {
namespace {

/// The open input gradients of a walk.
template <typename T, int W>
struct OpenGradients {
  const ShortConvBackwardArgs& args;
  int64_t first;  // tokens of the tile
  int64_t last;
  float open[W - 1][V];  // of the tokens before, newest first

  __device__ void store(const Walk<T, W>& walk, int64_t token, const float (&value)[V]) const {
    store_row<T, V>(static_cast<T*>(args.d_x) + token * args.d_x_stride + walk.channel, value, true);
  }

  /// Writes the gradient of `token` where it belongs to the tile and the walk's sequence.
  __device__ void write(const Walk<T, W>& walk, int64_t token, float (&value)[V]) const {
    if (token < first || token < walk.begin || token >= last) return;
    if (args.d_final != nullptr && walk.end - token <= W) {  // (eq. 6)
#pragma unroll
      for (int i = 0; i < V; ++i)
        value[i] += load_one<T>(args.d_final, walk.state_index(i, W - static_cast<int>(walk.end - token)));
    }
    store(walk, token, value);
  }

  /// A token adds to the gradients of itself and of the W - 1 before it, of which the oldest is complete then
  /// (eq. 4).
  __device__ void push(const float (&taps)[W][V], const float (&dsum)[V], float (&complete)[V]) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      complete[i] = fmaf(taps[0][i], dsum[i], open[W - 2][i]);
#pragma unroll
      for (int l = W - 2; l > 0; --l) open[l][i] = fmaf(taps[W - 1 - l][i], dsum[i], open[l - 1][i]);
      open[0][i] = taps[W - 1][i] * dsum[i];
    }
  }

  /// No token from `token` on adds to the open ones.
  __device__ void close(const Walk<T, W>& walk, int64_t token) {
#pragma unroll
    for (int l = 0; l < W - 1; ++l) {
      write(walk, token - 1 - l, open[l]);
#pragma unroll
      for (int i = 0; i < V; ++i) open[l][i] = 0;
    }
  }
};

/// dsum = dy silu'(sum) (eq. 3)
template <typename T, int W>
__device__ void sum_gradient(const Walk<T, W>& walk, const float (&taps)[W][V], const float (&x)[V],
                             float (&dy)[V]) {
  if (!walk.in.silu) return;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float sum = walk.filter(taps, x, i);
    dy[i] *= silu_slope(sum, sigmoid(sum));
  }
}

template <typename T, int W>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const __grid_constant__ ShortConvBackwardArgs args, int tile, bool wide) {
  using Queue = RowQueue<T, 2>;  // x, dy
  __shared__ typename Queue::Storage storage;
  const ShortConvInputs& in = args.in;
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * V;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tile;
  const int64_t last = min(in.num_tokens, first + tile);
  const int num_rows = static_cast<int>(min(in.num_tokens, last + W - 1) - first);
  const int64_t sequence = sequence_of(in.offsets, in.num_sequences, first);
  const unsigned lanes = __ballot_sync(0xffffffffu, channel < in.num_channels);
  if (channel >= in.num_channels) return;
  int part = 0;
  while (channel >= args.d_y[part].end) ++part;
  const int64_t part_begin = part == 0 ? 0 : args.d_y[part - 1].end;
  const int64_t dy_stride = args.d_y[part].token_stride;
  const T* dy = static_cast<const T*>(args.d_y[part].data);
  const bool has_dy = dy != nullptr;
  Queue queue{.storage = storage,
              .arrays = {static_cast<const T*>(in.x) + first * in.x_stride + channel,
                         has_dy ? dy + first * dy_stride + channel - part_begin : nullptr},
              .strides = {in.x_stride, dy_stride},
              .num_rows = num_rows,
              .wide = wide,
              .lanes = lanes};
  queue.start();

  float taps[W][V];
  load_taps<W>(in, channel, taps);
  Walk<T, W> walk(in, channel, sequence, first);
  OpenGradients<T, W> gradients{.args = args, .first = first, .last = last, .open = {}};
  float d_taps[W][V] = {};
  // A row of the queue; what is complete then, and whether the row's own share of d_taps is of this tile.
  const auto one_row = [&](int batch, int u, bool own, float(&complete)[V]) {
    float input[V];
    float dsum[V] = {};
    load_row<T, V>(queue.place(0, batch, u)).unpack(input);
    if (has_dy) load_row<T, V>(queue.place(1, batch, u)).unpack(dsum);
    sum_gradient<T, W>(walk, taps, input, dsum);
    if (own) {  // (eq. 5)
#pragma unroll
      for (int i = 0; i < V; ++i) {
#pragma unroll
        for (int j = 0; j < W - 1; ++j) d_taps[j][i] = fmaf(dsum[i], walk.window[j][i], d_taps[j][i]);
        d_taps[W - 1][i] = fmaf(dsum[i], input[i], d_taps[W - 1][i]);
      }
    }
    gradients.push(taps, dsum, complete);
    walk.push(input);
  };
  bool done = false;
  for (int batch = 0; batch * Queue::kBatch < num_rows && !done; ++batch) {
    queue.advance(batch);
    const int64_t begin = first + batch * Queue::kBatch;
    const int64_t end = begin + Queue::kBatch;
    // Rows of the tile inside one sequence, as are the tokens that they complete.
    if (end <= last && end <= walk.end && begin >= max(first, walk.begin) + W - 1 &&
        args.d_final == nullptr) {
#pragma unroll
      for (int u = 0; u < Queue::kBatch; ++u) {
        float complete[V];
        one_row(batch, u, true, complete);
        gradients.store(walk, begin + u - (W - 1), complete);
      }
      continue;
    }
    for (int u = 0; u < Queue::kBatch && batch * Queue::kBatch + u < num_rows; ++u) {
      const int64_t token = begin + u;
      if (token == walk.end) {
        gradients.close(walk, token);
        done = token >= last;
        if (done) break;
        walk.next_sequence();
      }
      float complete[V];
      one_row(batch, u, token < last, complete);
      gradients.write(walk, token - (W - 1), complete);
    }
  }
  if (!done) gradients.close(walk, first + num_rows);
  float* partial = args.partials + (blockIdx.x * in.num_channels + channel) * W;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    float of_channel[W];
#pragma unroll
    for (int j = 0; j < W; ++j) of_channel[j] = d_taps[j][i];
    if constexpr (W == 4) {
      store_row<float, W>(partial + i * W, of_channel, true);
    } else {
#pragma unroll
      for (int j = 0; j < W; ++j) partial[i * W + j] = of_channel[j];
    }
  }
}

/// Gradients of the history slots that the first tokens of a sequence read and that its final state shows; a
/// thread for V channels of a sequence.
template <typename T, int W>
__global__ void __launch_bounds__(kThreads)
    history_kernel(const __grid_constant__ ShortConvBackwardArgs args) {
  const ShortConvInputs& in = args.in;
  const int64_t groups = in.num_channels / V;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= in.num_sequences * groups) return;
  const int64_t channel = index % groups * V;
  int part = 0;
  while (channel >= args.d_y[part].end) ++part;
  const int64_t part_begin = part == 0 ? 0 : args.d_y[part - 1].end;
  const int64_t sequence = index / groups;
  float taps[W][V];
  load_taps<W>(in, channel, taps);
  Walk<T, W> walk(in, channel, sequence, in.offsets[sequence]);
  const int64_t length = walk.end - walk.begin;
  float d_slots[W][V] = {};
#pragma unroll
  for (int t = 0; t < W - 1; ++t) {
    if (t >= length) break;
    const int64_t token = walk.begin + t;
    float input[V];
    float dsum[V] = {};
    load_vector<T>(in.x, token * in.x_stride + channel, input);
    if (args.d_y[part].data != nullptr)
      load_vector<T>(args.d_y[part].data, token * args.d_y[part].token_stride + channel - part_begin, dsum);
    sum_gradient<T, W>(walk, taps, input, dsum);
#pragma unroll
    for (int i = 0; i < V; ++i)
#pragma unroll
      for (int j = 0; j < W - 1 - t; ++j)
        d_slots[t + j + 1][i] = fmaf(taps[j][i], dsum[i], d_slots[t + j + 1][i]);
    walk.push(input);
  }
  T* d_history = static_cast<T*>(args.d_history);
#pragma unroll
  for (int i = 0; i < V; ++i)
#pragma unroll
    for (int slot = 0; slot < W; ++slot) {
      float value = d_slots[slot][i];
      if (args.d_final != nullptr && slot >= length)  // the slot that this history moved on to
        value += load_one<T>(args.d_final, walk.state_index(i, slot - static_cast<int>(length)));
      d_history[walk.state_index(i, slot)] = static_cast<T>(value);
    }
}

}  // namespace
}  // namespace short_conv_detail

void launch(const ShortConvBackwardArgs& args, CUstream_st* stream) {
  namespace detail = short_conv_detail;
  const ShortConvInputs& in = args.in;
  detail::check_sizes(in);
  const bool fit = args.num_parts > 0 && args.num_parts <= kShortConvMaxParts &&
                   args.d_y[args.num_parts - 1].end == in.num_channels && args.d_x_stride % detail::V == 0;
  OSDN_CUDA_CHECK(fit ? cudaSuccess : cudaErrorInvalidValue);
  const int64_t tile = short_conv_tile(in.num_tokens, in.num_channels);
  bool wide = detail::pairs_aligned(in.x, in.x_stride);
  for (int part = 0; part < args.num_parts; ++part)
    wide = wide && args.d_y[part].end % (2 * detail::V) == 0 &&
           detail::pairs_aligned(args.d_y[part].data, args.d_y[part].token_stride);
  detail::dispatch(in, [&](auto zero, auto taps) {
    using T = decltype(zero);
    constexpr int W = decltype(taps)::value;
    if (in.num_tokens > 0 && in.num_channels > 0)
      detail::backward_kernel<T, W>
          <<<detail::walk_grid(in, tile), detail::kThreads, 0, stream>>>(args, static_cast<int>(tile), wide);
    const int64_t states = in.num_sequences * in.num_channels / detail::V;
    if (states > 0 && args.d_history != nullptr)
      detail::history_kernel<T, W>
          <<<static_cast<unsigned>((states + detail::kThreads - 1) / detail::kThreads), detail::kThreads, 0,
             stream>>>(args);
  });
  OSDN_CUDA_CHECK(cudaGetLastError());
  launch_column_sum(args.partials, short_conv_num_partials(in.num_tokens, in.num_channels),
                    in.num_channels * in.num_taps, args.d_weight, args.accumulate, stream);
}

}  // namespace osdn::kernels
