// The delta rule with an independent write key (docs/ops/delta_rule.md). Per value head, state S [K, V]:
//   S <- diag(exp g_t) S;  u = beta_t (v_t - S^T k_t);  S <- S + w_t u^T;  o_t = scale * S^T q_t (eq. 1-3)
// with write key w_t = k_t unless given. Covers DeltaNet (no decay), Gated DeltaNet (scalar decay) and KDA
// (per channel).
#pragma once

#include <optional>

#include "ops/sequences.h"
#include "tensor/fwd.h"

namespace osdn::ops {

// N: packed tokens; S: sequences; H: query/key heads; HV: value heads, a multiple of H (value head h reads
// q/k head h / (HV / H)); K, V: key and value head size.
struct DeltaRuleArgs {
  at::Tensor q;              // [N, H, K] float64, float32 or bf16
  at::Tensor k;              // [N, H, K] the reading (and, without write_key, writing) key, dtype of q
  at::Tensor v;              // [N, HV, V] dtype of q
  at::Tensor beta;           // [N, HV] fp32 (float64 with float64 inputs)
  at::Tensor write_key;      // [N, HV, K] dtype of q; undefined: k (after normalisation)
  at::Tensor log_decay;      // [N, HV] fp32; [N, HV, K] fp32 or dtype of q; <= 0, natural log; undefined: 0
  at::Tensor initial_state;  // [S, HV, K, V] fp32; undefined: zeros
  SequencesPtr sequences;
  std::optional<double> scale;  // of the query; absent: K^-1/2
  bool l2_normalize =
      true;  // q and k are given unnormalised and are normalised inside (eps 1e-6 inside the root)
  bool by_chunks = false;  // one token a sequence likewise, which else has a kernel of its own on CUDA
  bool overwrite_initial_state = false;  // final_state may be initial_state itself, written over: done on
                                         // CUDA for one token a sequence without gradients
};

struct DeltaRuleOutput {
  at::Tensor o;            // [N, HV, V] dtype of q
  at::Tensor final_state;  // [S, HV, K, V] fp32; the initial state for an empty sequence
};

/// Differentiable in q, k, v, beta, write_key, log_decay and initial_state, from both outputs; gradients in
/// the dtypes of the inputs. Hand-written backward of the chunk form. Throws UserError for shapes, dtypes and
/// devices that do not fit. Does not synchronise the device.
DeltaRuleOutput delta_rule(const DeltaRuleArgs& args);

/// Whether a sequence gets the same bits beside any others, no gradients wanted: loops and CUDA kernels go by
/// sequences, ATen multiplies the chunks of all at once.
bool keeps_sequences_apart(const DeltaRuleArgs& args);

/// Whether the CUDA kernel of single tokens takes states [S, HV, K, V] of these sizes.
bool has_step_kernel(int64_t key_size, int64_t value_size);

/// The token recurrence (eq. 1-3) in plain ATen, differentiable by autograd, in the dtype of the inputs: the
/// truth.
DeltaRuleOutput delta_rule_ref(const DeltaRuleArgs& args);

/// The chunk form (eq. 4-9) in plain ATen, differentiable by autograd; `chunk_size` tokens a chunk.
DeltaRuleOutput delta_rule_chunked(const DeltaRuleArgs& args, int64_t chunk_size = 64);

}  // namespace osdn::ops
