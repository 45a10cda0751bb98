// SwiGLU (docs/ops/swiglu.md, eq. 1-3) and its gradient: every array read or written once.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// N: rows; I: width, a multiple of the numbers in 16 bytes. All pointers are device memory, aligned to 16
// bytes; all arrays contiguous.

struct SwigluForwardArgs {
  const void* gate_up = nullptr;  // [N, 2 I] gate, then up
  void* z = nullptr;              // [N, I] written
  int64_t num_rows = 0;           // N
  int64_t width = 0;              // I
  bool bf16 = false;              // else fp32
};

struct SwigluBackwardArgs {
  const void* gate_up = nullptr;  // [N, 2 I]
  const void* d_z = nullptr;      // [N, I]
  void* d_gate_up = nullptr;      // [N, 2 I] written
  int64_t num_rows = 0;           // N
  int64_t width = 0;              // I
  bool bf16 = false;              // else fp32
};

/// Queue the pass on `stream`. No allocation, no synchronisation. Throw CudaError when the launch fails,
/// EnvironmentError in a build without CUDA.
void launch(const SwigluForwardArgs& args, CUstream_st* stream);
void launch(const SwigluBackwardArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
