// The sum of the squares of a range of gradients, for their norm (docs/ops/adamw.md).
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

inline constexpr int64_t kSquareSumPartials = 132 * 8;

struct SquareSumArgs {
  const float* values = nullptr;  // [P] device memory, aligned to 16 bytes
  int64_t num_values = 0;         // P, a multiple of 4
  double* partials = nullptr;     // [kSquareSumPartials] scratch
  double* sum = nullptr;          // one number, written
};

/// Queues the pass on `stream`. No allocation, no synchronisation, the same bits every time. Throws CudaError
/// when a launch fails, EnvironmentError in a build without CUDA.
void launch(const SquareSumArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
