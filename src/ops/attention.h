// Causal softmax attention over packed sequences, with a sliding window and grouped key/value heads, and the
// rotary embedding (docs/ops/attention.md). For the hybrid layers and the baseline of the linear backbones.
#pragma once

#include <optional>
#include <vector>

#include "ops/sequences.h"
#include "tensor/fwd.h"

namespace osdn::ops {

// N: query tokens; M: key tokens, M >= N; S: sequences; H: heads; HK: key/value heads, a divisor of H (head h
// reads head h / (H / HK)); D: head size.
struct AttentionArgs {
  at::Tensor q;             // [N, H, D] float64, float32 or bf16
  at::Tensor k;             // [M, HK, D] dtype of q
  at::Tensor v;             // [M, HK, D] dtype of q
  SequencesPtr queries;     // N tokens
  SequencesPtr keys;        // M tokens; the newest keys of a sequence belong to its queries
  int64_t window_size = 0;  // tokens that a token sees, itself included; 0: all
};

/// Returns [N, H, D] in the dtype of q; scale D^-1/2, softmax in fp32. Differentiable in q, k and v. bf16 on
/// CUDA with head sizes that are multiples of 8 up to 256 runs LibTorch's flash attention.
at::Tensor attention(const AttentionArgs& args);
at::Tensor attention_ref(const AttentionArgs& args);

/// Rotates x [N, H, D], D even: pairs (i, i + D/2) by the angle position * theta^(-2i/D) (eq. 4). `positions`
/// [N] int64. Angles in fp32 (float64 for float64), cosine and sine rounded to the dtype of x. Differentiable
/// in x.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, double theta);
at::Tensor rotary_ref(const at::Tensor& x, const at::Tensor& positions, double theta);

/// The position of every token in its sequence, [N] int64; `start`: of each sequence's first token, or empty.
at::Tensor positions_of(const Sequences& sequences, const std::vector<int64_t>& start, at::Device device);

}  // namespace osdn::ops
