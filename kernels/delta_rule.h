// The delta rule in chunks of 64 tokens on tensor cores (docs/ops/delta_rule.md, "CUDA kernels"): bf16 in and
// out, fp32 accumulation, no decay or one a token and head. Three passes over the problem's parts: `prepare`
// (every chunk by itself), `forward` (a scan over the chunks of each sequence), and for the gradients
// `backward_scan` and `backward_gradients`.
#pragma once

#include <cstdint>

struct CUstream_st;
// CUDA's own types, so that host code needs no header of the toolkit.
struct __half;         // NOLINT(bugprone-reserved-identifier)
struct __nv_bfloat16;  // NOLINT(bugprone-reserved-identifier)

namespace osdn::kernels {

// N: packed tokens; S: sequences; M: chunks of all sequences, sequence after sequence; H: query/key heads;
// HV: value heads, a multiple of H; K, V: key and value head size. KP, VP: K and V padded as the workspaces
// are. All pointers are device memory.

inline constexpr int kDeltaRuleChunk = 64;
inline constexpr int kDeltaRuleTriangle = 10 * 16 * 16;  // numbers of a triangular matrix of a chunk
inline constexpr int kDeltaRuleMaxKeySize = 256;
inline constexpr int kDeltaRuleMaxValueSize = 512;
inline constexpr int kDeltaRuleChannelValueSize = 256;  // with a decay by channel (delta_rule_channel.h)
/// Keys above this one need more shared memory.
inline constexpr int kDeltaRuleNarrowKeySize = 128;

/// Whether the current device has the shared memory that keys above kDeltaRuleNarrowKeySize need, 163 KB a
/// block.
bool delta_rule_takes_wide_keys();

/// KP: 64, 128 or 256.
constexpr int delta_rule_padded_key_size(int key_size) {
  return key_size <= 64 ? 64 : key_size <= kDeltaRuleNarrowKeySize ? 128 : 256;
}
/// VP: 64 or a multiple of 128.
constexpr int delta_rule_padded_value_size(int value_size) {
  return value_size <= 64 ? 64 : (value_size + 127) / 128 * 128;
}

/// [N, heads, size] bf16; the last dimension is contiguous, strides are in numbers and multiples of 8, data
/// is aligned to 16 bytes.
struct DeltaRuleRows {
  const __nv_bfloat16* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

struct DeltaRuleShape {
  const int64_t* offsets = nullptr;          // [S + 1] sequence bounds in tokens
  const int64_t* order = nullptr;            // [S] sequences by falling length
  const int64_t* chunk_offsets = nullptr;    // [S + 1] first chunk of each sequence
  const int64_t* chunk_sequences = nullptr;  // [M] sequence of each chunk; those behind chunk_offsets[S] do
                                             // not exist: of a sequence, behind its end
  int64_t num_tokens = 0;
  int64_t num_sequences = 0;
  int64_t num_chunks = 0;
  int num_key_heads = 0;
  int num_value_heads = 0;
  int key_size = 0;    // a multiple of 16 up to kDeltaRuleMaxKeySize
  int value_size = 0;  // a multiple of 16 up to kDeltaRuleMaxValueSize
};

/// What all passes read.
struct DeltaRuleInputs {
  DeltaRuleShape shape;
  DeltaRuleRows q;                   // [N, H, K] as given, before normalisation
  DeltaRuleRows k;                   // [N, H, K]
  DeltaRuleRows v;                   // [N, HV, V]
  DeltaRuleRows write_key;           // [N, HV, K]; data null: the normalised k
  const float* beta = nullptr;       // [N, HV] contiguous
  const float* log_decay = nullptr;  // [N, HV] contiguous; null: no decay
  float scale = 1;                   // of the query
  bool portable = false;  // the kernels for any device even where there are faster ones for this one
};

/// What `prepare` makes for the scans. Matrices of a chunk are lower triangular: ten 16x16 blocks, row of
/// blocks after row, each as four 8x8 blocks of 128 bytes.
struct DeltaRulePrepared {
  float* q_rstd = nullptr;    // [N, H] 1 without normalisation
  float* k_rstd = nullptr;    // [N, H]
  __half* inverse = nullptr;  // [M, HV, 2, 10, 16, 16] Y / inverse_scale (eq. 11): rounded, and the remainder
  float* inverse_scale = nullptr;  // [M, HV] powers of two
  __nv_bfloat16* pairs = nullptr;  // [M, HV, 10, 16, 16] W_rs q_r . w_s, s <= r, of the vectors as given
  // With log_decay only. G: log-decays summed from the chunk's first token to each.
  float* gates = nullptr;              // [M, HV, 3, 64] G, exp G, exp(G_C - G)
  __nv_bfloat16* key_pairs = nullptr;  // [M, HV, 10, 16, 16] M (eq. 4)
};

struct DeltaRulePrepareArgs {
  DeltaRuleInputs in;
  DeltaRulePrepared out;
  bool normalize = true;  // q and k, eps 1e-6 inside the root
};

struct DeltaRuleForwardArgs {
  DeltaRuleInputs in;
  DeltaRulePrepared prepared;
  const float* initial_state = nullptr;  // [S, HV, K, V]; null: zeros
  const float* chunk_decay = nullptr;    // [M, HV, KP] factors of the state over a chunk by key channel, for
                                         // rows that carry their decays already; null: none
  __nv_bfloat16* o = nullptr;            // [N, HV, V] written
  float* final_state = nullptr;          // [S, HV, K, V] written
  __nv_bfloat16* error = nullptr;        // [M, HV, VP, 64] written: E transposed, in blocks; null: not kept
  __nv_bfloat16* states = nullptr;  // [M, HV, VP, KP] written: state before each chunk, transposed, in blocks
  bool behind_prepare =
      false;  // queued right behind the `prepare` that makes `prepared`: may start as it ends
};

struct DeltaRuleBackwardScanArgs {
  DeltaRuleInputs in;  // v is not read
  DeltaRulePrepared prepared;
  DeltaRuleRows d_o;                   // [N, HV, V]
  const float* d_final = nullptr;      // [S, HV, K, V]; null: zeros
  const float* chunk_decay = nullptr;  // as in forward
  __nv_bfloat16* solved = nullptr;     // [M, HV, VP, 64] written: F transposed, in blocks
  __nv_bfloat16* d_states = nullptr;   // [M, HV, VP, KP] written: gradient of the state after each chunk
  float* d_initial = nullptr;          // [S, HV, K, V] written; null: not wanted
};

struct DeltaRuleBackwardGradientsArgs {
  DeltaRuleInputs in;  // v is not read
  DeltaRulePrepared prepared;
  DeltaRuleRows d_o;                        // [N, HV, V]
  const __nv_bfloat16* error = nullptr;     // as forward wrote it
  const __nv_bfloat16* states = nullptr;    // as forward wrote it
  const __nv_bfloat16* solved = nullptr;    // as backward_scan wrote it
  const __nv_bfloat16* d_states = nullptr;  // as backward_scan wrote it
  bool normalize = true;
  __nv_bfloat16* d_q = nullptr;  // [N, HV, K] written: of q as given, by value head
  __nv_bfloat16* d_k = nullptr;  // [N, HV, K] written: of k as given; holds the write part without write_key
  __nv_bfloat16* d_v = nullptr;  // [N, HV, V] written
  __nv_bfloat16* d_write_key = nullptr;  // [N, HV, K] written when there is a write key
  float* d_beta = nullptr;               // [N, HV] written
  float* d_log_decay = nullptr;          // [N, HV] written with a log_decay
};

/// Queue one pass on `stream`. No allocation, no synchronisation, the same bits every time. Throw
/// InternalError for sizes out of range, CudaError when the launch fails, EnvironmentError in a build without
/// CUDA.
void launch(const DeltaRulePrepareArgs& args, CUstream_st* stream);
void launch(const DeltaRuleForwardArgs& args, CUstream_st* stream);
void launch(const DeltaRuleBackwardScanArgs& args, CUstream_st* stream);
void launch(const DeltaRuleBackwardGradientsArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
