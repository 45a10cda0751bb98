// The delta rule for sequences of one token or none (docs/ops/delta_rule.md, "One token"): decoding. Every
// state is read once and written once.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// S: sequences; N: tokens, at most one a sequence; H: query/key heads; HV: value heads, a multiple of H; K,
// V: key and value head size. All pointers are device memory.

inline constexpr int kDeltaRuleStepMaxKeySize = 256;
inline constexpr int kDeltaRuleStepValueMultiple = 4;  // V is a multiple of it

/// [N, heads, size]; the last dimension is contiguous, strides are in numbers.
struct DeltaRuleStepRows {
  const void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

struct DeltaRuleStepArgs {
  const int64_t* offsets = nullptr;  // [S + 1] sequence bounds in tokens
  int64_t num_sequences = 0;         // S
  int64_t num_tokens = 0;            // N
  int num_key_heads = 0;             // H
  int num_value_heads = 0;           // HV
  int key_size = 0;                  // K, at most kDeltaRuleStepMaxKeySize
  int value_size = 0;                // V
  bool bf16 = false;                 // q, k, v, write_key and o are bf16, else fp32
  bool channel_decay = false;
  bool bf16_log_decay = false;           // log_decay is bf16, else fp32
  bool normalize = true;                 // q and k, eps 1e-6 inside the root
  float scale = 1;                       // of the query
  DeltaRuleStepRows q;                   // [N, H, K] as given, before normalisation
  DeltaRuleStepRows k;                   // [N, H, K]
  DeltaRuleStepRows v;                   // [N, HV, V]
  DeltaRuleStepRows write_key;           // [N, HV, K]; data null: the normalised k
  const float* beta = nullptr;           // [N, HV] contiguous
  const void* log_decay = nullptr;       // [N, HV], or [N, HV, K] with channel_decay; contiguous; null: none
  const float* initial_state = nullptr;  // [S, HV, K, V], aligned to 16 bytes; null: zeros
  void* o = nullptr;                     // [N, HV, V] written
  float* final_state = nullptr;          // [S, HV, K, V] written; may be initial_state itself
};

/// Queues the step on `stream`. No allocation, no synchronisation, the same bits every time. Throws CudaError
/// when the launch fails, EnvironmentError in a build without CUDA.
void launch(const DeltaRuleStepArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
