// What the implementations of the preconditioner scan share: the checked problem with k already normalised,
// and the two passes as plain functions. precond_scan.cpp puts autograd around them.
#pragma once

#include <vector>

#include "ops/precond_scan.h"

namespace osdn::ops::precond_scan_detail {

inline constexpr double kKeyNormEps = 1e-5;

// N, S, H, HV, K as in ops/precond_scan.h. Everything but k in the accumulation dtype, contiguous.
struct Problem {
  at::Tensor
      k;  // [N, H, K] normalised, rounded to the activation dtype, then widened; on the kernel path as given
  at::Tensor beta;       // [N, HV]
  at::Tensor retention;  // [N, HV], [N, HV, K] or undefined
  at::Tensor initial;    // [HV, K] d0 after its clamp, or [S, HV, K] carried
  SequencesPtr sequences;
  PrecondScanOptions options;

  /// Whether the CUDA kernels (kernels/precond_scan.h) take keys as these are given.
  static bool on_kernel_path(const at::Tensor& k);
  bool channel_retention() const { return retention.defined() && retention.dim() == 3; }
};

struct Forward {
  at::Tensor write_key;   // [N, HV, K] accumulation dtype, unrounded; on the kernel path rounded
  at::Tensor final_d;     // [S, HV, K]
  at::Tensor statistics;  // [kNumResidualTerms] or undefined
  // What the backward of the same implementation needs; empty unless asked for.
  std::vector<at::Tensor> kept;
};

struct Gradients {
  at::Tensor k;     // [N, H, K] with respect to the normalised key; on the kernel path to the key as given
  at::Tensor beta;  // [N, HV]
  at::Tensor retention;  // as the problem's
  at::Tensor initial;    // [S, HV, K] with respect to every sequence's first d
};

/// Either of `d_write_key` [N, HV, K] and `d_final` [S, HV, K] may be undefined. With `options.detach` only k
/// has a gradient.
Forward forward_cpu(const Problem& problem, bool keep, bool collect_statistics);
Gradients backward_cpu(const Problem& problem, const std::vector<at::Tensor>& kept,
                       const at::Tensor& d_write_key, const at::Tensor& d_final);
Forward forward_aten(const Problem& problem, bool keep, bool collect_statistics);
Gradients backward_aten(const Problem& problem, const std::vector<at::Tensor>& kept,
                        const at::Tensor& d_write_key, const at::Tensor& d_final);

/// `x` [N, heads, K] as the kernels can read it (kernels/precond_scan.h), or a contiguous copy.
at::Tensor readable_rows(const at::Tensor& x);

/// By the CUDA kernels, normalisation included. `d_read_key` [N, H, K], added to the gradient of k, or
/// undefined.
Forward forward_kernel(const Problem& problem, bool keep, bool collect_statistics);
Gradients backward_kernel(const Problem& problem, const std::vector<at::Tensor>& kept,
                          const at::Tensor& d_write_key, const at::Tensor& d_final,
                          const at::Tensor& d_read_key);

/// (eq. 12) by a CUDA kernel: fp32 [S, HV, K] of the backward pass and [HV, K] on a GPU; [HV, K].
at::Tensor initial_gradient_kernel(const at::Tensor& per_sequence, const at::Tensor& initial_scale,
                                   const PrecondScanOptions& options);

/// Throws UserError for arguments that do not fit each other.
void check(const PrecondScanArgs& args);

}  // namespace osdn::ops::precond_scan_detail
