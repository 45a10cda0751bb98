// Gradient of the embedding table (docs/ops/embedding.md, eq. 2) without atomics: a block takes 32 tokens in
// the order of their ids, a thread four channels, and adds the sum of every run of equal ids to its row. The
// sums of a run that goes on in the next block are left in `edges`; a second kernel adds them up in order, by
// the block in which the run begins. Memory-bound: the upstream gradient once, a row of the table once a run.
// Any architecture from sm_80.
#include "kernels/embedding.h"

#include <cuda_bf16.h>

#include "base/cuda.h"
#include "kernels/common/warp.cuh"

namespace osdn::kernels {
namespace embedding_detail {
namespace {

constexpr int V = kEmbeddingChannels;
constexpr int kThreads = 256;
constexpr int kBatch = 8;  // rows that are loaded together

__device__ inline void add_to(float* target, const float (&values)[V]) {
  float sum[V];
  load_row<float, V>(target).unpack(sum);
#pragma unroll
  for (int i = 0; i < V; ++i) sum[i] += values[i];
  store_row<float, V>(target, sum, true);
}

/// Grid: (tiles, channel blocks).
template <typename T>
__global__ void __launch_bounds__(kThreads) tile_kernel(const __grid_constant__ EmbeddingBackwardArgs args) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * V;
  if (channel >= args.width) return;
  const int64_t tile = blockIdx.x;
  const int64_t begin = tile * kEmbeddingTile;
  const int64_t end = min(args.num_tokens, begin + kEmbeddingTile);
  const T* d_y = static_cast<const T*>(args.d_y) + channel;
  float* edge = args.edges + tile * 2 * args.width + channel;
  bool from_left = begin > 0 && args.ids[begin - 1] == args.ids[begin];
  float sum[V] = {};
  for (int64_t first = begin; first < end; first += kBatch) {
    Row<T, V> rows[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      if (first + u < end) rows[u] = load_row<T, V>(d_y + args.tokens[first + u] * args.d_y_stride);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int64_t place = first + u;
      if (place >= end) continue;
      float values[V];
      rows[u].unpack(values);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += values[i];
      const int64_t id = args.ids[place];
      const bool goes_on = place + 1 < args.num_tokens && args.ids[place + 1] == id;
      if (goes_on && place + 1 < end) continue;
      if (from_left)
        store_row<float, V>(edge, sum, true);
      else if (goes_on)
        store_row<float, V>(edge + args.width, sum, true);
      else
        add_to(args.d_table + id * args.width + channel, sum);
      from_left = false;
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] = 0;
    }
  }
}

/// The run that begins in the tile and goes on beyond it, if there is one. Grid as above.
__global__ void __launch_bounds__(kThreads) edge_kernel(const __grid_constant__ EmbeddingBackwardArgs args) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * V;
  const int64_t tile = blockIdx.x;
  const int64_t begin = tile * kEmbeddingTile;
  const int64_t end = begin + kEmbeddingTile;
  if (channel >= args.width || end >= args.num_tokens) return;
  const int64_t id = args.ids[end - 1];
  if (args.ids[end] != id) return;
  const bool from_left = args.ids[begin] == id && begin > 0 && args.ids[begin - 1] == id;
  if (from_left) return;
  const float* edge = args.edges + tile * 2 * args.width + channel;
  float sum[V];
  load_row<float, V>(edge + args.width).unpack(sum);
  for (int64_t next = end; next < args.num_tokens && args.ids[next] == id; next += kEmbeddingTile) {
    edge += 2 * args.width;
    float values[V];
    load_row<float, V>(edge).unpack(values);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] += values[i];
  }
  add_to(args.d_table + id * args.width + channel, sum);
}

}  // namespace
}  // namespace embedding_detail

void launch(const EmbeddingBackwardArgs& args, CUstream_st* stream) {
  namespace detail = embedding_detail;
  OSDN_CUDA_CHECK(args.width % detail::V == 0 && args.d_y_stride % detail::V == 0 ? cudaSuccess
                                                                                  : cudaErrorInvalidValue);
  if (args.num_tokens == 0 || args.width == 0) return;
  constexpr int64_t kPerBlock = int64_t{detail::kThreads} * detail::V;
  const dim3 grid(static_cast<unsigned>(embedding_num_tiles(args.num_tokens)),
                  static_cast<unsigned>((args.width + kPerBlock - 1) / kPerBlock));
  const auto kernel = args.bf16 ? detail::tile_kernel<__nv_bfloat16> : detail::tile_kernel<float>;
  kernel<<<grid, detail::kThreads, 0, stream>>>(args);
  detail::edge_kernel<<<grid, detail::kThreads, 0, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
