// The sequential part of the preconditioner scan (docs/ops/precond_scan.md): one d a (sequence, value head),
// token after token. What does not depend on d is computed by the caller for all tokens at once. fp32.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// N: packed tokens; S: sequences; HV: value heads; K: key size, at most kPrecondScanMaxKeySize. Token i of
// the packed order lies in row rows[i] of every [N, ...] array. All pointers are device memory, all arrays
// contiguous.

inline constexpr int kPrecondScanMaxKeySize = 256;

struct PrecondScanShape {
  const int64_t* offsets = nullptr;  // [S + 1] sequence bounds in packed tokens
  const int64_t* rows = nullptr;     // [N]
  int64_t num_sequences = 0;
  int num_heads = 0;  // HV
  int key_size = 0;   // K
};

struct PrecondScanForwardArgs {
  PrecondScanShape shape;
  const float* key = nullptr;        // [N, HV, K] normalised
  const float* gain = nullptr;       // [N, HV] the step is gain - feedback * s
  const float* feedback = nullptr;   // [N, HV]
  const float* retention = nullptr;  // [N, HV], or [N, HV, K] with channel_retention; null: 1
  const float* initial = nullptr;    // [S, HV, K] first d of each sequence
  float* d = nullptr;                // [N, HV, K] written: d used at each token
  float* s = nullptr;                // [N, HV] written: <d, key^2>
  bool* inside = nullptr;            // [N, HV, K] written: the clip was inactive
  float* final_d = nullptr;          // [S, HV, K] written
  float box_min = 0;
  float box_max = 0;
  bool channel_retention = false;
  bool anchored = false;
};

struct PrecondScanBackwardArgs {
  PrecondScanShape shape;
  const float* key = nullptr;            // [N, HV, K]
  const float* feedback = nullptr;       // [N, HV]
  const float* retention = nullptr;      // as in forward
  const bool* inside = nullptr;          // [N, HV, K] as forward wrote it
  const float* through_write = nullptr;  // [N, HV, K] gradient of d from its write key
  const float* d_final = nullptr;        // [S, HV, K] gradient of final_d
  float* lambda = nullptr;               // [N, HV, K] written: gradient of the next d before its clip
  float* along = nullptr;                // [N, HV] written: <lambda, key^2>
  float* d_initial = nullptr;            // [S, HV, K] written
  bool channel_retention = false;
};

/// Queue the scan on `stream`. No allocation, no synchronisation, the same bits every time. Throw
/// InternalError for a key size out of range, CudaError when the launch fails, EnvironmentError in a build
/// without CUDA.
void launch(const PrecondScanForwardArgs& args, CUstream_st* stream);
void launch(const PrecondScanBackwardArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
