// The softmax of ops/linear_cross_entropy.h (docs/ops/linear_cross_entropy.md, eq. 1-3): losses of rows of
// logits and, in place, their gradient. A row is read once and written once.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// C: rows; V: vocabulary. All pointers are device memory.

struct LinearCrossEntropyArgs {
  void* logits = nullptr;            // [C, V], rows row_stride apart, aligned to 16 bytes
  int64_t row_stride = 0;            // V rounded up to a multiple of the numbers in 16 bytes
  const int64_t* targets = nullptr;  // [C] in [0, V), or `ignored`
  int64_t ignored = -100;
  const float* scale = nullptr;  // of the gradient, one number; null: 1
  float* loss = nullptr;   // [C] written: 0 for ignored targets, NaN for those out of range; null: not wanted
  bool gradient = false;   // replace the logits by scale * (softmax - one_hot), 0 for ignored targets
  int64_t num_rows = 0;    // C
  int64_t vocabulary = 0;  // V
  bool bf16 = false;       // logits are bf16, else fp32
};

/// Queues the pass on `stream`. No allocation, no synchronisation, the same bits every time. Throws CudaError
/// when the launch fails, EnvironmentError in a build without CUDA.
void launch(const LinearCrossEntropyArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
