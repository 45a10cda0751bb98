// The decay gate (docs/ops/decay_gate.md) and its gradients: every array read or written once.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// N: tokens; HV: value heads; K: channels, a multiple of 4; C = HV K. All pointers are device memory, aligned
// to 16 bytes; all arrays contiguous.

struct DecayGateForwardArgs {
  const void* a = nullptr;      // [N, C]
  const float* rate = nullptr;  // [HV] exp(A)
  const float* bias = nullptr;  // [C]
  float* g = nullptr;           // [N, C] written
  int64_t num_tokens = 0;       // N
  int64_t num_channels = 0;     // K
  int64_t width = 0;            // C
  float lower_bound = 0;        // c of (eq. 2); 0: (eq. 1)
  bool bf16 = false;            // a, else fp32
};

struct DecayGateBackwardArgs {
  const void* a = nullptr;      // [N, C]
  const float* rate = nullptr;  // [HV]
  const float* bias = nullptr;  // [C]
  const float* d_g = nullptr;   // [N, C]
  void* d_a = nullptr;          // [N, C] written, in the dtype of a
  float* d_bias = nullptr;      // [C] written
  float* d_rate = nullptr;      // [C] written: what adds up over a head's channels to the gradient of A
  int64_t num_tokens = 0;       // N
  int64_t num_channels = 0;     // K
  int64_t width = 0;            // C
  float lower_bound = 0;
  bool bf16 = false;
};

/// Bytes of workspace that the backward needs.
size_t workspace_bytes(const DecayGateBackwardArgs& args);

/// Queue the pass on `stream`. No allocation, no synchronisation. Throw CudaError when the launch fails,
/// EnvironmentError in a build without CUDA.
void launch(const DecayGateForwardArgs& args, CUstream_st* stream);
void launch(const DecayGateBackwardArgs& args, void* workspace, CUstream_st* stream);

}  // namespace osdn::kernels
