// AdamW over a contiguous range of parameters (docs/ops/adamw.md).
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// P: elements, a multiple of decay_block.
struct AdamWArgs {
  float* masters = nullptr;               // [P] updated in place
  const float* gradients = nullptr;       // [P]
  float* exp_avgs = nullptr;              // [P] updated in place
  float* exp_avg_sqs = nullptr;           // [P] updated in place
  void* compute_copy = nullptr;           // [P] bf16, written; null: none
  const uint8_t* decay_blocks = nullptr;  // [P / decay_block] 1 where weight decay applies
  int64_t num_elements = 0;               // P
  int64_t decay_block = 64;               // elements that share a flag
  float learning_rate = 0;
  float beta1 = 0;
  float beta2 = 0;
  float eps = 0;
  float weight_decay = 0;
  float inverse_correction1 = 1;       // 1 / (1 - beta1^t)
  float inverse_sqrt_correction2 = 1;  // 1 / sqrt(1 - beta2^t)
  float gradient_scale = 1;            // clipping
};

/// Queues the update on `stream`. All pointers are device memory. No allocation, no synchronisation.
/// Throws CudaError when the launch fails, EnvironmentError in a build without CUDA.
void launch(const AdamWArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
