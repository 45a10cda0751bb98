// The product of a few rows with a matrix of bf16 numbers (docs/ops/linear.md, "Few rows"): decoding.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

constexpr int kLinearMaxRows = 4;
constexpr int64_t kLinearWidthMultiple = 8;  // numbers in 16 bytes

// N: rows; D_in, D_out: widths of input and output. All pointers are device memory; x, its rows and weight
// are aligned to 16 bytes.
struct LinearArgs {
  const void* x = nullptr;       // [N, D_in] bf16
  int64_t x_stride = 0;          // numbers between rows, a multiple of kLinearWidthMultiple
  const void* weight = nullptr;  // [D_out, D_in] bf16, contiguous
  const void* bias = nullptr;    // [D_out] or null
  bool bias_bf16 = false;        // else fp32
  void* y = nullptr;             // [N, D_out] bf16, contiguous, written
  int num_rows = 0;              // N, from 1 to kLinearMaxRows
  int64_t num_outputs = 0;       // D_out
  int64_t width = 0;             // D_in, a multiple of kLinearWidthMultiple
};

/// Queues the product on `stream`. No allocation, no synchronisation. Throws CudaError when the launch fails,
/// EnvironmentError in a build without CUDA.
void launch(const LinearArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
