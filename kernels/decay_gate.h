// The log decay of gated backbones (docs/ops/decay_gate.md, eq. 1-7): every array read or written once.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// N: rows; HV: value heads; K: channels of a head, 1 where it has one decay; C = HV K. All arrays but `a` are
// contiguous. Any address will do; the fast way needs heads and rows of a that are a multiple of 16 bytes and
// addresses likewise.

struct DecayGateInputs {
  const void* a = nullptr;          // [N, C] rows `row_stride` numbers apart
  const float* log_rate = nullptr;  // [HV] A
  const float* bias = nullptr;      // [C] b
  int64_t num_rows = 0;             // N
  int64_t num_heads = 0;            // HV
  int64_t num_channels = 1;         // K
  int64_t row_stride = 0;           // of a
  bool bounded = false;             // eq. 2, else eq. 1
  float lower_bound = 0.0f;         // c, where bounded
  bool bf16 = false;                // a, else fp32
  bool bf16_gates = false;          // g and d_g, where a is bf16; else fp32
};

struct DecayGateForwardArgs {
  DecayGateInputs in;
  void* g = nullptr;  // [N, C] written
};

struct DecayGateBackwardArgs {
  DecayGateInputs in;
  const void* d_g = nullptr;  // [N, C]
  void* d_a = nullptr;        // [N, C] written, dtype of a
  float* partials = nullptr;  // [decay_gate_num_partials(N), 2, C] scratch
  // [2, C] written: of the bias; of the log rate, to be added up over a head's channels
  float* d_columns = nullptr;
};

/// Rows of partial sums that the backward pass of N rows leaves in its scratch memory.
int64_t decay_gate_num_partials(int64_t num_rows);

/// Queue the pass on `stream`. No allocation, no synchronisation, the same bits every time. Throw CudaError
/// when a launch fails, EnvironmentError in a build without CUDA.
void launch(const DecayGateForwardArgs& args, CUstream_st* stream);
void launch(const DecayGateBackwardArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
