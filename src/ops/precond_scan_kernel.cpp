// The preconditioner scan by the CUDA kernels (kernels/precond_scan.h; docs/ops/precond_scan.md): their
// arguments.
#include <algorithm>

#include "kernels/precond_scan.h"
#include "ops/detail/precond_scan.h"
#include "ops/detail/residual_terms.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::precond_scan_detail {
namespace precond_scan_kernel_detail {

template <typename T>
T* pointer(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.data_ptr()) : nullptr;
}

kernels::PrecondScanRows rows(const at::Tensor& x) {
  if (!x.defined()) return {};
  return {.data = x.data_ptr(), .token_stride = x.stride(0), .head_stride = x.stride(1)};
}

/// `k`: as readable_rows() gives it
kernels::PrecondScanInputs kernel_inputs(const Problem& problem, const at::Tensor& k) {
  const PrecondScanOptions& options = problem.options;
  return {.offsets = pointer<const int64_t>(problem.sequences->offsets()),
          .order = pointer<const int64_t>(problem.sequences->order()),
          .num_tokens = k.size(0),
          .num_sequences = problem.sequences->num_sequences(),
          .num_key_heads = static_cast<int>(k.size(1)),
          .num_value_heads = static_cast<int>(problem.beta.size(1)),
          .key_size = static_cast<int>(k.size(2)),
          .bf16 = k.scalar_type() == at::kBFloat16,
          .k = rows(k),
          .beta = pointer<const float>(problem.beta),
          .retention = pointer<const float>(problem.retention),
          .step_size = static_cast<float>(options.step_size),
          .box_min = static_cast<float>(options.box_min),
          .box_max = static_cast<float>(options.box_max),
          .beta_aware = options.rule == HypergradientRule::kBetaAware,
          .divide_by_key_norm = options.divide_by_key_norm,
          .channel_retention = problem.channel_retention(),
          .anchored = options.anchored,
          .normalize = options.l2_normalize};
}

}  // namespace precond_scan_kernel_detail

bool Problem::on_kernel_path(const at::Tensor& k) {
  const int64_t K = k.size(2);
  return k.is_cuda() && (k.scalar_type() == at::kBFloat16 || k.scalar_type() == at::kFloat) && K > 0 &&
         K <= kernels::kPrecondScanMaxKeySize && K % kernels::precond_scan_channels(K) == 0 &&
         compute_capability() >= 80;
}

at::Tensor readable_rows(const at::Tensor& x) {
  const int64_t channels = kernels::precond_scan_channels(x.size(2));
  const auto bytes = static_cast<uintptr_t>(std::min<int64_t>(channels * x.element_size(), 16));
  const bool fits = x.stride(2) == 1 && x.stride(0) % channels == 0 && x.stride(1) % channels == 0 &&
                    reinterpret_cast<uintptr_t>(x.data_ptr()) % bytes == 0;
  return fits || x.numel() == 0 ? x : x.contiguous();
}

Forward forward_kernel(const Problem& problem, bool keep, bool collect_statistics) {
  namespace detail = precond_scan_kernel_detail;
  const at::Tensor k = readable_rows(problem.k);
  const int64_t N = k.size(0);
  const int64_t HV = problem.beta.size(1);
  const int64_t K = k.size(2);
  const at::TensorOptions wide = problem.beta.options();
  const int64_t S = problem.sequences->num_sequences();
  at::Tensor tokens;  // [N, HV, 4] kernels::PrecondScanToken
  at::Tensor blocks;  // [rows, HV, K] d at the first token of each block
  if (keep) {
    const int block = kernels::precond_scan_block(
        kernels::precond_scan_channels(K), k.scalar_type() == at::kBFloat16, problem.channel_retention());
    tokens = at::empty({N, HV, 4}, wide);
    blocks = at::empty({kernels::precond_scan_block_rows(N, S, block), HV, K}, wide);
  }
  at::Tensor parts;  // [S * HV, kNumResidualTerms]
  if (collect_statistics) parts = at::empty({S * HV, kNumResidualTerms}, wide.dtype(at::kDouble));
  Forward out;
  out.write_key = at::empty({N, HV, K}, k.options());
  out.final_d = at::empty({S, HV, K}, wide);
  launch(kernels::PrecondScanForwardArgs{.in = detail::kernel_inputs(problem, k),
                                         .initial = detail::pointer<const float>(problem.initial),
                                         .shared_initial = problem.initial.dim() == 2,
                                         .write_key = out.write_key.data_ptr(),
                                         .tokens = detail::pointer<kernels::PrecondScanToken>(tokens),
                                         .block_d = detail::pointer<float>(blocks),
                                         .final_d = detail::pointer<float>(out.final_d),
                                         .statistics = detail::pointer<double>(parts)},
         current_stream());
  if (keep) out.kept = {tokens, blocks};
  if (collect_statistics) out.statistics = merge_residual_parts(parts);
  return out;
}

Gradients backward_kernel(const Problem& problem, const std::vector<at::Tensor>& kept,
                          const at::Tensor& d_write_key, const at::Tensor& d_final,
                          const at::Tensor& d_read_key) {
  namespace detail = precond_scan_kernel_detail;
  const at::Tensor k = readable_rows(problem.k);
  const int64_t N = k.size(0);
  const int64_t H = k.size(1);
  const int64_t HV = problem.beta.size(1);
  const int64_t K = k.size(2);
  const bool detach = problem.options.detach;
  const at::Tensor upstream = d_write_key.defined() ? readable_rows(d_write_key) : at::Tensor();
  const at::Tensor read = d_read_key.defined() ? readable_rows(d_read_key) : at::Tensor();  // [N, H, K]
  const at::Tensor last = d_final.defined() ? d_final.contiguous() : at::Tensor();          // [S, HV, K]
  const at::Tensor d_k = at::empty({N, HV, K}, k.options());
  Gradients grads;
  if (!detach) {
    grads.beta = at::empty_like(problem.beta);
    if (problem.retention.defined()) grads.retention = at::empty_like(problem.retention);
    grads.initial = at::empty({problem.sequences->num_sequences(), HV, K}, problem.beta.options());
  }
  launch(kernels::PrecondScanBackwardArgs{.in = detail::kernel_inputs(problem, k),
                                          .tokens = detail::pointer<const kernels::PrecondScanToken>(kept[0]),
                                          .block_d = detail::pointer<const float>(kept[1]),
                                          .d_write_key = detail::rows(upstream),
                                          .d_read_key = detail::rows(read),
                                          .d_final = detail::pointer<const float>(last),
                                          .detach = detach,
                                          .d_k = d_k.data_ptr(),
                                          .d_beta = detail::pointer<float>(grads.beta),
                                          .d_retention = detail::pointer<float>(grads.retention),
                                          .d_initial = detail::pointer<float>(grads.initial)},
         current_stream());
  grads.k = HV == H ? d_k : d_k.view({N, H, HV / H, K}).sum(2, false, at::kFloat).to(k.scalar_type());
  return grads;
}

at::Tensor initial_gradient_kernel(const at::Tensor& per_sequence, const at::Tensor& initial_scale,
                                   const PrecondScanOptions& options) {
  namespace detail = precond_scan_kernel_detail;
  const at::Tensor rows = per_sequence.contiguous();      // [S, HV, K]
  const at::Tensor initial = initial_scale.contiguous();  // [HV, K]
  at::Tensor sum = at::empty_like(initial);
  launch(kernels::PrecondScanInitialArgs{.d_initial = detail::pointer<const float>(rows),
                                         .initial = detail::pointer<const float>(initial),
                                         .sum = detail::pointer<float>(sum),
                                         .num_sequences = rows.size(0),
                                         .num_channels = initial.numel(),
                                         .clamp = options.clamp_initial,
                                         .box_min = static_cast<float>(options.box_min),
                                         .box_max = static_cast<float>(options.box_max)},
         current_stream());
  return sum;
}

}  // namespace osdn::ops::precond_scan_detail
