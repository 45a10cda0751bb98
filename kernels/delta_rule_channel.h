// The delta rule with a decay a key channel (docs/ops/delta_rule.md, "Decay by channel"): the passes that
// differ from kernels/delta_rule.h. `prepare` writes rows that carry the decays of their chunk, which the
// scans of delta_rule.h take as q, k and write key together with `chunk_decay`; `backward_gradients` makes
// the gradients from what the scans wrote.
#pragma once

#include "kernels/delta_rule.h"

namespace osdn::kernels {

// N, M, H, HV, K, V, KP, VP as in delta_rule.h. G: log-decays of a channel summed from the chunk's first
// token to each; G_C: over the whole chunk.

struct DeltaRuleChannelPrepareArgs {
  DeltaRuleInputs in;  // its log_decay is null
  // [N, HV, K] contiguous, aligned to 16 bytes: fp32, or bf16 where `bf16_log_decay`.
  const void* log_decay = nullptr;
  bool bf16_log_decay = false;
  bool normalize = true;  // q and k, eps 1e-6 inside the root
  // Written. Of `out`, q_rstd and k_rstd are [N, HV], pairs those of q as given and of w as it is written,
  // inverse is Y in two parts of bf16, whatever its type, and inverse_scale is left alone.
  DeltaRulePrepared out;
  __nv_bfloat16* q = nullptr;          // [N, HV, K] exp G o q as given
  __nv_bfloat16* k = nullptr;          // [N, HV, K] exp G o k as given
  __nv_bfloat16* write_key = nullptr;  // [N, HV, K] exp(G_C - G) o w
  float* chunk_decay = nullptr;        // [M, HV, KP] exp(G_C)
  int* anchored = nullptr;  // [M, HV] bit i: one anchor serves rows and columns of the i-th 16 tokens
};

struct DeltaRuleChannelGradientsArgs {
  DeltaRuleInputs in;               // as given, not as `prepare` wrote them; v is not read
  const void* log_decay = nullptr;  // [N, HV, K] as `prepare` had it
  bool bf16_log_decay = false;
  bool normalize = true;
  bool initial_state = false;  // whether sequences start from one: else a first token's decay has no effect
  DeltaRuleRows d_o;           // [N, HV, V]
  // As `prepare` wrote them.
  const float* q_rstd = nullptr;       // [N, HV]
  const float* k_rstd = nullptr;       // [N, HV]
  const float* chunk_decay = nullptr;  // [M, HV, KP]
  const int* anchored = nullptr;       // [M, HV]
  // As the scans wrote them.
  const __nv_bfloat16* error = nullptr;     // [M, HV, VP, 64]
  const __nv_bfloat16* states = nullptr;    // [M, HV, VP, KP]
  const __nv_bfloat16* solved = nullptr;    // [M, HV, VP, 64]
  const __nv_bfloat16* d_states = nullptr;  // [M, HV, VP, KP]
  // Written.
  __nv_bfloat16* d_q = nullptr;          // [N, HV, K] of q as given, by value head
  __nv_bfloat16* d_k = nullptr;          // [N, HV, K] of k as given; holds the write part without write_key
  __nv_bfloat16* d_v = nullptr;          // [N, HV, V]
  __nv_bfloat16* d_write_key = nullptr;  // [N, HV, K] when there is a write key
  float* d_beta = nullptr;               // [N, HV]
  void* d_log_decay = nullptr;           // [N, HV, K] of log_decay's type
};

/// Queue one pass on `stream`. No allocation, no synchronisation, the same bits every time. Throw CudaError
/// when the launch fails, EnvironmentError in a build without CUDA.
void launch(const DeltaRuleChannelPrepareArgs& args, CUstream_st* stream);
void launch(const DeltaRuleChannelGradientsArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
