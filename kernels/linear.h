// The product of rows with a matrix in which a row of the result has the same bits in any company
// (docs/ops/linear.md, "Rows that do not depend on each other"): decoding.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

constexpr int64_t kLinearPieceBytes = 16;  // what rows and widths are multiples of

// N: rows; D_in, D_out: widths of input and output. All pointers are device memory; x, its rows and weight
// are aligned to kLinearPieceBytes.
struct LinearArgs {
  const void* x = nullptr;       // [N, D_in] bf16 or fp32
  int64_t x_stride = 0;          // numbers between rows, whole pieces
  const void* weight = nullptr;  // [D_out, D_in] like x, contiguous
  const void* bias = nullptr;    // [D_out] or null
  bool bias_bf16 = false;        // else fp32
  void* y = nullptr;             // [N, D_out] like x, contiguous, written
  int64_t num_rows = 0;          // N
  int64_t num_outputs = 0;       // D_out
  int64_t width = 0;             // D_in, whole pieces
  bool bf16 = true;              // else fp32
};

/// Queues the product on `stream`. No allocation, no synchronisation. Throws CudaError when the launch fails,
/// EnvironmentError in a build without CUDA.
void launch(const LinearArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
