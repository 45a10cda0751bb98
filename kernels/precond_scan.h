// The preconditioner scan (docs/ops/precond_scan.md, eq. 1-12): one d a (sequence, value head), token after
// token. Keys in bf16 or fp32, everything else in fp32.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// N: packed tokens; S: sequences; H: key heads; HV: value heads, a multiple of H; K: key size. All pointers
// are device memory, arrays without strides contiguous. A lane holds P = precond_scan_channels(K)
// neighbouring channels.

inline constexpr int kPrecondScanMaxKeySize = 256;

/// 1, 2, 4 or 8: the fewest channels a lane with which a warp holds K. K must be a multiple of it.
constexpr int precond_scan_channels(int64_t key_size) {
  return key_size <= 32 ? 1 : key_size <= 64 ? 2 : key_size <= 128 ? 4 : 8;
}

/// Tokens of a block, the unit in which the scans work and between which d is kept: so many that shared
/// memory holds a dozen blocks of the reverse scan.
constexpr int precond_scan_block(int channels, bool bf16, bool channel_retention) {
  return channels * (bf16 ? 1 : 2) * (channel_retention ? 2 : 1) <= 4 ? 8 : 4;
}

/// Rows of the array of kept d: those of sequence s begin at offsets[s] / block + s.
constexpr int64_t precond_scan_block_rows(int64_t num_tokens, int64_t num_sequences, int block) {
  return num_tokens / block + num_sequences;
}

/// [N, heads, K] bf16 or fp32; the last dimension is contiguous, data and strides are aligned to P numbers.
struct PrecondScanRows {
  const void* data = nullptr;
  int64_t token_stride = 0;  // in numbers
  int64_t head_stride = 0;
};

/// What both passes read.
struct PrecondScanInputs {
  const int64_t* offsets = nullptr;  // [S + 1] sequence bounds in tokens
  const int64_t* order = nullptr;    // [S] sequences by falling length
  int64_t num_tokens = 0;            // N
  int64_t num_sequences = 0;         // S
  int num_key_heads = 0;             // H
  int num_value_heads = 0;           // HV
  int key_size = 0;                  // K
  bool bf16 = false;                 // keys, write keys and their gradients are bf16, else fp32
  PrecondScanRows k;                 // [N, H, K] as given, before normalisation
  const float* beta = nullptr;       // [N, HV]
  const float* retention = nullptr;  // [N, HV], or [N, HV, K] with channel_retention; null: 1
  float step_size = 0;
  float box_min = 0;
  float box_max = 0;
  bool beta_aware = true;
  bool divide_by_key_norm = false;
  bool channel_retention = false;
  bool anchored = false;
  bool normalize = true;  // k, eps 1e-6 inside the root; the unit key is rounded to the keys' type
};

/// What the forward keeps of a token and value head.
struct alignas(16) PrecondScanToken {
  float rstd;   // of the key; 1 without normalisation
  float plain;  // <1, x>
  float s;      // <d, x>
  float step;   // d moves by step * x
};

struct PrecondScanForwardArgs {
  PrecondScanInputs in;
  const float* initial = nullptr;  // [S, HV, K], or [HV, K] with shared_initial
  bool shared_initial = false;
  void* write_key = nullptr;           // [N, HV, K] written
  PrecondScanToken* tokens = nullptr;  // [N, HV] written; null: not kept
  float* block_d = nullptr;  // [precond_scan_block_rows, HV, K] written: d at the first token of each block;
                             // null: not kept
  float* final_d = nullptr;  // [S, HV, K] written
  double* statistics = nullptr;  // [S * HV, kResidualTerms] written (kernels/residual_stats.h); null: none
};

struct PrecondScanBackwardArgs {
  PrecondScanInputs in;
  const PrecondScanToken* tokens = nullptr;  // [N, HV] as forward wrote it
  const float* block_d = nullptr;            // as forward wrote it
  PrecondScanRows d_write_key;               // [N, HV, K]; data null: zeros
  PrecondScanRows d_read_key;      // [N, H, K] added to d_k by the first value head; data null: none
  const float* d_final = nullptr;  // [S, HV, K]; null: zeros
  bool detach = false;             // no gradient through d: only d_k is written
  void* d_k = nullptr;             // [N, HV, K] written: of k as given, by value head
  float* d_beta = nullptr;         // [N, HV] written
  float* d_retention = nullptr;    // as retention, written when there is one
  float* d_initial = nullptr;      // [S, HV, K] written: of every sequence's first d
};

/// The gradient of the d that all sequences begin with (eq. 12). Sequences without tokens, whose gradients
/// are 0, change no bit of it, however many stand at the end.
struct PrecondScanInitialArgs {
  const float* d_initial = nullptr;  // [S, HV, K] as backward wrote it
  const float* initial = nullptr;    // [HV, K]
  float* sum = nullptr;              // [HV, K] written
  int64_t num_sequences = 0;
  int64_t num_channels = 0;  // HV K
  bool clamp = true;         // 0 where the initial d lies outside the box
  float box_min = 0;
  float box_max = 0;
};

/// Queue the pass on `stream`. No allocation, no synchronisation, the same bits every time. Throw
/// InternalError for a key size out of range, CudaError when the launch fails, EnvironmentError in a build
/// without CUDA.
void launch(const PrecondScanForwardArgs& args, CUstream_st* stream);
void launch(const PrecondScanBackwardArgs& args, CUstream_st* stream);
void launch(const PrecondScanInitialArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
