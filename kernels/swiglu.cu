// SwiGLU (docs/ops/swiglu.md, eq. 1-3): a thread takes four vectors of 16 bytes of z, a block's side by side.
// Memory-bound: 6 bytes a number of z forward and 10 backward in bf16. Any architecture from sm_80.
#include "kernels/swiglu.h"

#include <cuda_bf16.h>

#include "base/cuda.h"
#include "kernels/common/activation.cuh"
#include "kernels/common/warp.cuh"

namespace osdn::kernels {
namespace swiglu_detail {
namespace {

constexpr int kThreads = 256;
constexpr int kVectors = 4;  // of a thread

/// The thread's vectors: calls each(v, offset of gate, offset of z) for those that exist. One 64-bit division
/// a block's share; the rest in 32 bits.
template <int V, typename Each>
__device__ void for_vectors(int64_t num_rows, int64_t width, const Each& each) {
  const int64_t per_row = width / V;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kVectors;
  const int64_t row = first / per_row;
  const auto rest = static_cast<uint32_t>(first - row * per_row) + threadIdx.x;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t place = rest + v * kThreads;
    const uint32_t rows = place / static_cast<uint32_t>(per_row);
    const int64_t column = static_cast<int64_t>(place - rows * static_cast<uint32_t>(per_row)) * V;
    if (row + rows < num_rows) each(v, (row + rows) * 2 * width + column, (row + rows) * width + column);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ SwigluForwardArgs args) {
  constexpr int V = 16 / sizeof(T);
  const T* gate_up = static_cast<const T*>(args.gate_up);
  Row<T, V> gates[kVectors];
  Row<T, V> ups[kVectors];
  for_vectors<V>(args.num_rows, args.width, [&](int v, int64_t from, int64_t) {
    gates[v] = load_row<T, V>(gate_up + from);
    ups[v] = load_row<T, V>(gate_up + from + args.width);
  });
  for_vectors<V>(args.num_rows, args.width, [&](int v, int64_t, int64_t to) {
    float gate[V];
    float z[V];
    gates[v].unpack(gate);
    ups[v].unpack(z);
#pragma unroll
    for (int i = 0; i < V; ++i) z[i] *= gate[i] * sigmoid(gate[i]);  // (eq. 1)
    store_row<T, V>(static_cast<T*>(args.z) + to, z, true);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) backward_kernel(const __grid_constant__ SwigluBackwardArgs args) {
  constexpr int V = 16 / sizeof(T);
  const T* gate_up = static_cast<const T*>(args.gate_up);
  T* d_gate_up = static_cast<T*>(args.d_gate_up);
  Row<T, V> gates[kVectors];
  Row<T, V> ups[kVectors];
  Row<T, V> d_zs[kVectors];
  for_vectors<V>(args.num_rows, args.width, [&](int v, int64_t from, int64_t to) {
    gates[v] = load_row<T, V>(gate_up + from);
    ups[v] = load_row<T, V>(gate_up + from + args.width);
    d_zs[v] = load_row<T, V>(static_cast<const T*>(args.d_z) + to);
  });
  for_vectors<V>(args.num_rows, args.width, [&](int v, int64_t from, int64_t) {
    float gate[V];
    float up[V];
    float d_z[V];
    gates[v].unpack(gate);
    ups[v].unpack(up);
    d_zs[v].unpack(d_z);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float s = sigmoid(gate[i]);
      up[i] *= d_z[i] * silu_slope(gate[i], s);  // (eq. 2)
      d_z[i] *= gate[i] * s;                     // (eq. 3)
    }
    store_row<T, V>(d_gate_up + from, up, true);
    store_row<T, V>(d_gate_up + from + args.width, d_z, true);
  });
}

template <typename Args>
void launch_kernel(void (*bf16)(Args), void (*fp32)(Args), const Args& args, CUstream_st* stream) {
  const int64_t vector = args.bf16 ? 8 : 4;
  OSDN_CUDA_CHECK(args.width % vector == 0 ? cudaSuccess : cudaErrorInvalidValue);
  const int64_t vectors = args.num_rows * (args.width / vector);
  constexpr int64_t kPerBlock = int64_t{kThreads} * kVectors;
  if (vectors == 0) return;
  const auto blocks = static_cast<unsigned>((vectors + kPerBlock - 1) / kPerBlock);
  (args.bf16 ? bf16 : fp32)<<<blocks, kThreads, 0, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace
}  // namespace swiglu_detail

void launch(const SwigluForwardArgs& args, CUstream_st* stream) {
  namespace detail = swiglu_detail;
  detail::launch_kernel(detail::forward_kernel<__nv_bfloat16>, detail::forward_kernel<float>, args, stream);
}

void launch(const SwigluBackwardArgs& args, CUstream_st* stream) {
  namespace detail = swiglu_detail;
  detail::launch_kernel(detail::backward_kernel<__nv_bfloat16>, detail::backward_kernel<float>, args, stream);
}

}  // namespace osdn::kernels
