// Residual statistics on the device (docs/ops/residual_stats.md): the terms of parts of the tokens, and their
// merge in a fixed order.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

/// Terms of a part, in the order of ops/residual_stats.h.
inline constexpr int kResidualTerms = 13;

/// Smallest residual ratio that is counted.
inline constexpr float kResidualFloor = 1e-30f;

/// Merge `parts` [num_parts, kResidualTerms], 0 or more, into `terms` [kResidualTerms].
struct ResidualMergeArgs {
  const double* parts = nullptr;
  int64_t num_parts = 0;
  double* terms = nullptr;
};

/// The statistics of writes with d = 1. N tokens, H key heads, HV value heads, K channels.
struct PlainResidualArgs {
  const void* k = nullptr;  // [N, H, K], the last dimension contiguous; bf16 or fp32
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  const float* beta = nullptr;  // [N, HV]
  int64_t num_tokens = 0;
  int num_key_heads = 0;
  int num_value_heads = 0;
  int key_size = 0;
  bool bf16 = false;
  bool normalize = true;    // k as in the scan
  double* parts = nullptr;  // [plain_residual_parts(N), kResidualTerms] written
};

/// Parts that PlainResidualArgs of that many tokens has.
int64_t plain_residual_parts(int64_t num_tokens);

/// Queue on `stream`. No allocation, no synchronisation, the same bits every time.
void launch(const ResidualMergeArgs& args, CUstream_st* stream);
void launch(const PlainResidualArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
