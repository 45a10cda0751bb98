// What the implementations of the delta rule share: the checked problem, with q and k already normalised, and
// the two passes as plain functions. delta_rule.cpp puts autograd around them.
#pragma once

#include <vector>

#include "ops/delta_rule.h"

namespace osdn::ops::delta_rule_detail {

/// Smaller log-decays count as this one: their factor is 0 all the same, but differences with minus infinity
/// are NaN.
inline constexpr double kSmallestLogDecay = -1e5;

// N, S, H, HV, K, V as in ops/delta_rule.h.
struct Problem {
  at::Tensor q;              // [N, H, K] normalised, see `normalize`
  at::Tensor k;              // [N, H, K]
  at::Tensor v;              // [N, HV, V]
  at::Tensor beta;           // [N, HV] accumulation dtype
  at::Tensor write_key;      // [N, HV, K] or undefined: k
  at::Tensor log_decay;      // [N, HV], [N, HV, K] or undefined; the latter also in the dtype of v
  at::Tensor initial_state;  // [S, HV, K, V] or undefined
  SequencesPtr sequences;
  double scale = 1;
  bool normalize = false;  // q and k are as given and still to be normalised: on the kernel path only
  bool overwrite = false;  // the final state may take the place of the initial one

  int64_t num_value_heads() const { return v.size(1); }
  int64_t heads_per_key() const { return v.size(1) / k.size(1); }
  bool scalar_decay() const { return log_decay.defined() && log_decay.dim() == 2; }
  bool channel_decay() const { return log_decay.defined() && log_decay.dim() == 3; }
  bool on_cpu_path() const { return v.is_cpu() && !channel_decay(); }
  /// Whether the CUDA kernels (kernels/delta_rule.h) take it.
  bool on_kernel_path() const;
};

struct Forward {
  at::Tensor o;            // [N, HV, V] dtype of v
  at::Tensor final_state;  // [S, HV, K, V] accumulation dtype
  // For the backward of the same implementation only; empty unless asked for.
  at::Tensor
      inverse;  // T' of every chunk; undefined on the CPU path, which solves instead; Y on the kernel path
  at::Tensor error;   // E of every chunk
  at::Tensor states;  // state before every chunk
  // Of the kernel path (kernels/delta_rule.h, DeltaRulePrepared).
  at::Tensor q_rstd;
  at::Tensor k_rstd;
  at::Tensor inverse_scale;
  at::Tensor pairs;
  at::Tensor gates;      // with a scalar decay
  at::Tensor key_pairs;  // likewise
  // With a decay by channel (kernels/delta_rule_channel.h).
  at::Tensor decayed_rows;  // [3, N, HV, K] q, k and write key
  at::Tensor chunk_decay;
  at::Tensor anchored;
};

/// In the accumulation dtype, or those of the inputs. Gradients of q and k are with respect to the normalised
/// vectors, summed over the value heads of a group. `write_key` is undefined when the problem has none (then
/// part of k); likewise the decay.
struct Gradients {
  at::Tensor q;              // [N, H, K]
  at::Tensor k;              // [N, H, K]
  at::Tensor v;              // [N, HV, V]
  at::Tensor beta;           // [N, HV]
  at::Tensor write_key;      // [N, HV, K]
  at::Tensor log_decay;      // [N, HV] or [N, HV, K]
  at::Tensor initial_state;  // [S, HV, K, V]
};

/// Throws UserError for arguments that do not fit each other; returns the problem with q and k as given.
Problem checked(const DeltaRuleArgs& args);

/// Either of `d_o` [N, HV, V] and `d_final` [S, HV, K, V] may be undefined: no gradient.
Forward forward_aten(const Problem& problem, bool keep);
Gradients backward_aten(const Problem& problem, const Forward& kept, const at::Tensor& d_o,
                        const at::Tensor& d_final);
/// On the CPU, for problems without decay or with scalar decay.
Forward forward_cpu(const Problem& problem, bool keep);
Gradients backward_cpu(const Problem& problem, const Forward& kept, const at::Tensor& d_o,
                       const at::Tensor& d_final);

/// Whether the kernels for any device run even where there are faster ones for the device at hand: for tests
/// and for finding faults. Off at first; not to be changed while the op runs.
bool portable_kernels();
void set_portable_kernels(bool portable);

/// By the CUDA kernels, normalisation included: gradients are those of q and k as given.
Forward forward_kernel(const Problem& problem, bool keep);
Gradients backward_kernel(const Problem& problem, const Forward& kept, const at::Tensor& d_o,
                          const at::Tensor& d_final);
/// Their part for a decay by channel.
Forward forward_channel_kernel(const Problem& problem, bool keep);
Gradients backward_channel_kernel(const Problem& problem, const Forward& kept, const at::Tensor& d_o,
                                  const at::Tensor& d_final);

/// The chunk length of the ATen form: a power of two of at most `largest`, no longer than the longest
/// sequence needs.
int64_t chunk_length(const Sequences& sequences, int64_t largest);

/// x [N, H, D] to chunks of its rows [M * HV, C, D] in `dtype`, padding slots zero, each head repeated for
/// its value heads. Differentiable.
at::Tensor to_chunks(const at::Tensor& x, const ChunkTable& table, int64_t num_value_heads,
                     at::ScalarType dtype);
/// The inverse: [M * HV, C, D] to [N, HV, D]. Differentiable.
at::Tensor from_chunks(const at::Tensor& x, const ChunkTable& table, int64_t num_value_heads);

/// Sums over a chunk's tokens along `dim`: of token t and later ones, and of the tokens before t.
at::Tensor sum_from(const at::Tensor& x, int64_t dim);
at::Tensor sum_before(const at::Tensor& x, int64_t dim);

struct PairGradients {
  at::Tensor x;          // [B, 2, C, K]
  at::Tensor y;          // [B, C, K]
  at::Tensor log_decay;  // [B, C, 1 or K]; undefined without decay
};

// The decayed pair products of a chunk (eq. 4). Exponents are differences of cumulated log-decays between the
// pair's tokens, never positive, taken in float64: a chunk sum of -1e5 must not cost the small differences
// their digits.
class PairDecay {
 public:
  /// log_decay [B, C, 1 or K] in chunks, or undefined.
  PairDecay(const at::Tensor& log_decay, at::ScalarType dtype);

  /// From the chunk's start: exp(G) [B, C, 1 or K]; to its end: exp(G_C - G); over all of it: exp(G_C) [B, 1
  /// or K, 1]. Undefined without decay.
  at::Tensor from_start;
  at::Tensor to_end;
  at::Tensor whole;

  /// x [B, 2, C, K], y [B, C, K] -> [B, 2, C, C]: <x_r o exp(G_r - G_s), y_s> for s <= r, 0 above.
  /// Differentiable.
  at::Tensor gram(const at::Tensor& x, const at::Tensor& y) const;

  /// Adds the gradients of gram: d_gram [B, 2, C, C] is zero above the diagonal, `gram` its result for x and
  /// y.
  void add_gram_gradients(const at::Tensor& d_gram, const at::Tensor& gram, const at::Tensor& x,
                          const at::Tensor& y, PairGradients& out) const;

 private:
  enum class Kind { kNone, kScalar, kChannel };
  struct Level;
  Level level(int64_t block) const;

  Kind kind_ = Kind::kNone;
  at::ScalarType dtype_;
  at::Tensor sums_;   // [B, C, 1 or K] float64: inclusive cumulated log-decay G
  at::Tensor pairs_;  // [B, 1, C, C] scalar decay only: exp(G_r - G_s) for s <= r, 0 above
};

}  // namespace osdn::ops::delta_rule_detail
