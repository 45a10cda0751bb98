// The delta rule by the CUDA kernels (kernels/delta_rule.h; docs/ops/delta_rule.md, "CUDA kernels"):
// workspaces and the order of the passes.

#include <atomic>

#include "kernels/delta_rule.h"
#include "ops/detail/delta_rule.h"
#include "ops/detail/delta_rule_kernel.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::delta_rule_detail {
namespace delta_rule_kernel_detail {

std::atomic<bool> only_portable = false;

}  // namespace delta_rule_kernel_detail

bool portable_kernels() { return delta_rule_kernel_detail::only_portable; }
void set_portable_kernels(bool portable) { delta_rule_kernel_detail::only_portable = portable; }

bool Problem::on_kernel_path() const {
  const auto fits = [](int64_t size, int64_t largest) {
    return size > 0 && size % 16 == 0 && size <= largest;
  };
  if (!v.is_cuda() || v.scalar_type() != at::kBFloat16 || compute_capability() < 80) return false;
  const int64_t largest_value =
      channel_decay() ? kernels::kDeltaRuleChannelValueSize : kernels::kDeltaRuleMaxValueSize;
  return fits(k.size(2), kernels::kDeltaRuleMaxKeySize) && fits(v.size(2), largest_value) &&
         (k.size(2) <= kernels::kDeltaRuleNarrowKeySize || kernels::delta_rule_takes_wide_keys());
}

Forward forward_kernel(const Problem& problem, bool keep) {
  if (problem.channel_decay()) return forward_channel_kernel(problem, keep);
  namespace detail = delta_rule_kernel_detail;
  const detail::KernelInputs inputs(problem);
  const at::TensorOptions fp32 = problem.v.options().dtype(at::kFloat);
  const int64_t C = kernels::kDeltaRuleChunk;
  Forward result;
  result.q_rstd = at::empty({problem.q.size(0), problem.q.size(1)}, fp32);
  result.k_rstd = at::empty_like(result.q_rstd);
  result.inverse = inputs.blocks(2, kernels::kDeltaRuleTriangle, at::kHalf);
  result.inverse_scale = at::empty({inputs.in.shape.num_chunks, problem.v.size(1)}, fp32);
  result.pairs = inputs.blocks(1, kernels::kDeltaRuleTriangle, at::kBFloat16);
  if (problem.scalar_decay()) {
    result.gates = at::empty({inputs.in.shape.num_chunks, problem.v.size(1), 3, C}, fp32);
    result.key_pairs = at::empty_like(result.pairs);
  }
  result.o = at::empty(problem.v.sizes(), problem.v.options());
  result.final_state = inputs.state(problem);
  if (keep) {
    result.error = inputs.blocks(inputs.padded_values(), C, at::kBFloat16);
    result.states = inputs.blocks(inputs.padded_values(), inputs.padded_keys(), at::kBFloat16);
  }
  const at::Tensor initial =
      problem.initial_state.defined() ? problem.initial_state.contiguous() : at::Tensor();
  const kernels::DeltaRulePrepared prepared = detail::prepared_pointers(result);
  launch(kernels::DeltaRulePrepareArgs{.in = inputs.in, .out = prepared, .normalize = problem.normalize},
         current_stream());
  launch(kernels::DeltaRuleForwardArgs{.in = inputs.in,
                                       .prepared = prepared,
                                       .initial_state = detail::pointer<const float>(initial),
                                       .o = detail::pointer<__nv_bfloat16>(result.o),
                                       .final_state = detail::pointer<float>(result.final_state),
                                       .error = detail::pointer<__nv_bfloat16>(result.error),
                                       .states = detail::pointer<__nv_bfloat16>(result.states),
                                       .behind_prepare = true},
         current_stream());
  return result;
}

Gradients backward_kernel(const Problem& problem, const Forward& kept, const at::Tensor& d_o,
                          const at::Tensor& d_final) {
  if (problem.channel_decay()) return backward_channel_kernel(problem, kept, d_o, d_final);
  namespace detail = delta_rule_kernel_detail;
  const detail::KernelInputs inputs(problem);
  const kernels::DeltaRulePrepared prepared = detail::prepared_pointers(kept);
  const int64_t N = problem.v.size(0);
  const int64_t HV = problem.v.size(1);
  const int64_t K = problem.k.size(2);
  const at::TensorOptions bf16 = problem.v.options();
  const at::Tensor upstream = d_o.defined() ? detail::readable(d_o) : at::zeros(problem.v.sizes(), bf16);
  const at::Tensor d_end = d_final.defined() ? d_final.contiguous() : at::Tensor();  // [S, HV, K, V]
  const at::Tensor solved = inputs.blocks(inputs.padded_values(), kernels::kDeltaRuleChunk, at::kBFloat16);
  const at::Tensor d_states = inputs.blocks(inputs.padded_values(), inputs.padded_keys(), at::kBFloat16);
  Gradients grads;
  if (problem.initial_state.defined()) grads.initial_state = inputs.state(problem);
  launch(kernels::DeltaRuleBackwardScanArgs{.in = inputs.in,
                                            .prepared = prepared,
                                            .d_o = detail::rows(upstream),
                                            .d_final = detail::pointer<const float>(d_end),
                                            .solved = detail::pointer<__nv_bfloat16>(solved),
                                            .d_states = detail::pointer<__nv_bfloat16>(d_states),
                                            .d_initial = detail::pointer<float>(grads.initial_state)},
         current_stream());
  const at::Tensor d_q = at::empty({N, HV, K}, bf16);
  const at::Tensor d_k = at::empty({N, HV, K}, bf16);
  grads.v = at::empty(problem.v.sizes(), bf16);
  grads.beta = at::empty({N, HV}, bf16.dtype(at::kFloat));
  if (problem.write_key.defined()) grads.write_key = at::empty({N, HV, K}, bf16);
  if (problem.scalar_decay()) grads.log_decay = at::empty_like(grads.beta);
  launch(
      kernels::DeltaRuleBackwardGradientsArgs{.in = inputs.in,
                                              .prepared = prepared,
                                              .d_o = detail::rows(upstream),
                                              .error = detail::pointer<const __nv_bfloat16>(kept.error),
                                              .states = detail::pointer<const __nv_bfloat16>(kept.states),
                                              .solved = detail::pointer<const __nv_bfloat16>(solved),
                                              .d_states = detail::pointer<const __nv_bfloat16>(d_states),
                                              .normalize = problem.normalize,
                                              .d_q = detail::pointer<__nv_bfloat16>(d_q),
                                              .d_k = detail::pointer<__nv_bfloat16>(d_k),
                                              .d_v = detail::pointer<__nv_bfloat16>(grads.v),
                                              .d_write_key = detail::pointer<__nv_bfloat16>(grads.write_key),
                                              .d_beta = detail::pointer<float>(grads.beta),
                                              .d_log_decay = detail::pointer<float>(grads.log_decay)},
      current_stream());
  grads.q = detail::by_key_head(d_q, problem.k.size(1));
  grads.k = detail::by_key_head(d_k, problem.k.size(1));
  return grads;
}

}  // namespace osdn::ops::delta_rule_detail
