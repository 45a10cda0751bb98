// RMS normalisation, plain, gated and of a sum (docs/ops/rms_norm.md, eq. 1-6): one read and one write of the
// activations a pass, the weight's gradient in fp32 partial sums of a fixed order.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// R: rows; D: width, a multiple of the numbers in 16 bytes. All pointers are device memory, aligned to 16
// bytes; all arrays contiguous.

/// The widest row that the kernels take.
constexpr int64_t rms_norm_max_width(bool bf16) { return bf16 ? 8192 : 4096; }

/// Rows of partial weight gradients that backward writes.
int64_t rms_norm_num_partials(int64_t num_rows, int64_t width, bool bf16);

/// What both passes read.
struct RmsNormInputs {
  int64_t num_rows = 0;           // R
  int64_t width = 0;              // D
  bool bf16 = false;              // activations are bf16, else fp32
  const void* x = nullptr;        // [R, D]
  const void* gate = nullptr;     // [R, D]; null: none
  bool swish = true;              // silu of the gate, else its sigmoid
  const float* weight = nullptr;  // [D]
};

struct RmsNormForwardArgs {
  RmsNormInputs in;
  const void* residual = nullptr;  // [R, D] added to x before; null: none
  bool round_sum = false;          // the norm of the sum as it is written, else of the sum in fp32
  float eps = 0;
  void* y = nullptr;      // [R, D] written
  void* sum = nullptr;    // [R, D] written where there is a residual: the rounded sum
  float* rstd = nullptr;  // [R] written
};

struct RmsNormBackwardArgs {
  RmsNormInputs in;             // x: what was normalised, the rounded sum where there was a residual
  const float* rstd = nullptr;  // [R]
  const void* d_y = nullptr;    // [R, D]
  const void* d_sum = nullptr;  // [R, D] added to d_x; null: zeros
  void* d_x = nullptr;          // [R, D] written
  void* d_gate = nullptr;       // [R, D] written where there is a gate
  float* partials = nullptr;    // [rms_norm_num_partials(R, D, bf16), D] scratch
  float* d_weight = nullptr;    // [D]
  bool accumulate = false;      // add to d_weight instead of writing it
};

/// Queue the pass on `stream`. No allocation, no synchronisation, the same bits every time. Throw CudaError
/// for a width out of range and when a launch fails, EnvironmentError in a build without CUDA.
void launch(const RmsNormForwardArgs& args, CUstream_st* stream);
void launch(const RmsNormBackwardArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
