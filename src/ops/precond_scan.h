// The online preconditioner of the write key (docs/ops/precond_scan.md): a sequential scan per value head,
//   x_t = k_t o k_t;  s_t = <d_t, x_t>;  write_key_t = d_t o k_t
//   e_t = beta_t (1 - beta_t s_t)  (beta-aware)   or   1 - s_t  (beta-free)
//   d_{t+1} = clip(retain_t(d_t) + step_size * e_t * x_t / N_t, box)
// retain(d) = d, r d, or 1 + r (d - 1) when anchored; N_t = 1 or sum(x_t) + 1e-5. d restarts from d0 at every
// sequence.
#pragma once

#include "ops/residual_stats.h"
#include "ops/sequences.h"
#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::ops {

enum class HypergradientRule { kBetaAware, kBetaFree };

struct PrecondScanOptions {
  double step_size = 1.0;
  double box_min = 2.0 / 3.0;
  double box_max = 1.5;
  HypergradientRule rule = HypergradientRule::kBetaAware;
  bool anchored = false;
  bool divide_by_key_norm = false;
  bool detach = false;  // no gradient through d: k gets only d o d(write_key); beta, retention, d0 get none
  bool clamp_initial = true;  // d0 is clamped to the box on use, with zero gradient outside
  bool l2_normalize = true;   // k is given unnormalised (as delta_rule)
};

// N: packed tokens; S: sequences; H: key heads; HV: value heads (value head h reads key head h / (HV / H));
// K: key size.
struct PrecondScanArgs {
  at::Tensor k;          // [N, H, K] float64, float32 or bf16
  at::Tensor beta;       // [N, HV] fp32 (float64 with float64 inputs)
  at::Tensor retention;  // [N, HV] or [N, HV, K] in [0, 1], fp32; undefined: 1
  Weight initial_scale;  // d0 [HV, K]
  at::Tensor carried;    // [S, HV, K] fp32: continue from these d instead of d0 (decoding, split prefill);
                         // undefined: d0
  SequencesPtr sequences;
  PrecondScanOptions options;
  bool collect_statistics = false;
};

struct PrecondScanOutput {
  at::Tensor write_key;   // [N, HV, K] dtype of k: d_t o k_t
  at::Tensor read_key;    // k itself, for the op that reads with it: its gradient is added in this op's
                          // backward pass, which costs less than a pass of its own
  at::Tensor final_d;     // [S, HV, K] fp32, d after the last token; differentiable
  at::Tensor statistics;  // [kNumResidualTerms] float64, no gradient (ops/residual_stats.h); undefined unless
                          // collected
};

/// Differentiable in k, beta, retention, d0 (through its sink, or autograd without one) and carried.
/// Hand-written forward and backward; multi-threaded over heads and sequences on CPU; the same bits with any
/// number of threads.
PrecondScanOutput precond_scan(const PrecondScanArgs& args);

/// The same, token by token in plain ATen, differentiable by autograd (except through `statistics`).
PrecondScanOutput precond_scan_ref(const PrecondScanArgs& args);

}  // namespace osdn::ops
