// The delta rule with a decay by channel by the CUDA kernels (kernels/delta_rule_channel.h; docs/ops/
// delta_rule.md, "Decay by channel"): the scans are those of the delta rule without decay, on rows that carry
// it.
#include "kernels/delta_rule_channel.h"
#include "ops/detail/delta_rule.h"
#include "ops/detail/delta_rule_kernel.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::delta_rule_detail {
namespace delta_rule_channel_kernel_detail {

using delta_rule_kernel_detail::KernelInputs;
using delta_rule_kernel_detail::pointer;

/// Contiguous and aligned for the kernels' loads.
at::Tensor log_decay_of(const Problem& problem) {
  const at::Tensor x = problem.log_decay.contiguous();  // [N, HV, K] fp32 or bf16
  return reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0 ? x : x.clone();
}

/// The inputs of the scans: one query, key and write key a value head, decayed.
kernels::DeltaRuleInputs scan_inputs(const KernelInputs& inputs, const at::Tensor& decayed_rows) {
  kernels::DeltaRuleInputs in = inputs.in;
  in.shape.num_key_heads = in.shape.num_value_heads;
  in.q = delta_rule_kernel_detail::rows(decayed_rows.select(0, 0));
  in.k = delta_rule_kernel_detail::rows(decayed_rows.select(0, 1));
  in.write_key = delta_rule_kernel_detail::rows(decayed_rows.select(0, 2));
  return in;
}

}  // namespace delta_rule_channel_kernel_detail

Forward forward_channel_kernel(const Problem& problem, bool keep) {
  using namespace delta_rule_channel_kernel_detail;
  const KernelInputs inputs(problem);
  const at::Tensor log_decay = log_decay_of(problem);
  const at::TensorOptions bf16 = problem.v.options();
  const at::TensorOptions fp32 = bf16.dtype(at::kFloat);
  const int64_t N = problem.v.size(0);
  const int64_t HV = problem.v.size(1);
  const int64_t M = inputs.in.shape.num_chunks;
  Forward result;
  result.q_rstd = at::empty({N, HV}, fp32);
  result.k_rstd = at::empty({N, HV}, fp32);
  result.inverse = inputs.blocks(2, kernels::kDeltaRuleTriangle, at::kHalf);
  result.pairs = inputs.blocks(1, kernels::kDeltaRuleTriangle, at::kBFloat16);
  result.decayed_rows = at::empty({3, N, HV, problem.k.size(2)}, bf16);
  result.chunk_decay = at::empty({M, HV, inputs.padded_keys()}, fp32);
  result.anchored = at::empty({M, HV}, bf16.dtype(at::kInt));
  result.o = at::empty(problem.v.sizes(), bf16);
  result.final_state = inputs.state(problem);
  if (keep) {
    result.error = inputs.blocks(inputs.padded_values(), kernels::kDeltaRuleChunk, at::kBFloat16);
    result.states = inputs.blocks(inputs.padded_values(), inputs.padded_keys(), at::kBFloat16);
  }
  const at::Tensor initial =
      problem.initial_state.defined() ? problem.initial_state.contiguous() : at::Tensor();
  const kernels::DeltaRulePrepared prepared = delta_rule_kernel_detail::prepared_pointers(result);
  const auto decayed = [&](int64_t i) { return pointer<__nv_bfloat16>(result.decayed_rows.select(0, i)); };
  launch(kernels::DeltaRuleChannelPrepareArgs{.in = inputs.in,
                                              .log_decay = log_decay.const_data_ptr(),
                                              .bf16_log_decay = log_decay.scalar_type() == at::kBFloat16,
                                              .normalize = problem.normalize,
                                              .out = prepared,
                                              .q = decayed(0),
                                              .k = decayed(1),
                                              .write_key = decayed(2),
                                              .chunk_decay = pointer<float>(result.chunk_decay),
                                              .anchored = pointer<int>(result.anchored)},
         current_stream());
  launch(kernels::DeltaRuleForwardArgs{.in = scan_inputs(inputs, result.decayed_rows),
                                       .prepared = prepared,
                                       .initial_state = pointer<const float>(initial),
                                       .chunk_decay = pointer<const float>(result.chunk_decay),
                                       .o = pointer<__nv_bfloat16>(result.o),
                                       .final_state = pointer<float>(result.final_state),
                                       .error = pointer<__nv_bfloat16>(result.error),
                                       .states = pointer<__nv_bfloat16>(result.states),
                                       .behind_prepare = true},
         current_stream());
  return result;
}

Gradients backward_channel_kernel(const Problem& problem, const Forward& kept, const at::Tensor& d_o,
                                  const at::Tensor& d_final) {
  using namespace delta_rule_channel_kernel_detail;
  const KernelInputs inputs(problem);
  const at::Tensor log_decay = log_decay_of(problem);
  const at::TensorOptions bf16 = problem.v.options();
  const int64_t N = problem.v.size(0);
  const int64_t HV = problem.v.size(1);
  const int64_t K = problem.k.size(2);
  const at::Tensor upstream =
      d_o.defined() ? delta_rule_kernel_detail::readable(d_o) : at::zeros(problem.v.sizes(), bf16);
  const at::Tensor d_end = d_final.defined() ? d_final.contiguous() : at::Tensor();  // [S, HV, K, V]
  const at::Tensor solved = inputs.blocks(inputs.padded_values(), kernels::kDeltaRuleChunk, at::kBFloat16);
  const at::Tensor d_states = inputs.blocks(inputs.padded_values(), inputs.padded_keys(), at::kBFloat16);
  Gradients grads;
  if (problem.initial_state.defined()) grads.initial_state = inputs.state(problem);
  launch(kernels::DeltaRuleBackwardScanArgs{.in = scan_inputs(inputs, kept.decayed_rows),
                                            .prepared = delta_rule_kernel_detail::prepared_pointers(kept),
                                            .d_o = delta_rule_kernel_detail::rows(upstream),
                                            .d_final = pointer<const float>(d_end),
                                            .chunk_decay = pointer<const float>(kept.chunk_decay),
                                            .solved = pointer<__nv_bfloat16>(solved),
                                            .d_states = pointer<__nv_bfloat16>(d_states),
                                            .d_initial = pointer<float>(grads.initial_state)},
         current_stream());
  const at::Tensor d_q = at::empty({N, HV, K}, bf16);
  const at::Tensor d_k = at::empty({N, HV, K}, bf16);
  grads.v = at::empty(problem.v.sizes(), bf16);
  grads.beta = at::empty({N, HV}, bf16.dtype(at::kFloat));
  grads.log_decay = at::empty({N, HV, K}, log_decay.options());
  if (problem.write_key.defined()) grads.write_key = at::empty({N, HV, K}, bf16);
  launch(kernels::DeltaRuleChannelGradientsArgs{.in = inputs.in,
                                                .log_decay = log_decay.const_data_ptr(),
                                                .bf16_log_decay = log_decay.scalar_type() == at::kBFloat16,
                                                .normalize = problem.normalize,
                                                .initial_state = problem.initial_state.defined(),
                                                .d_o = delta_rule_kernel_detail::rows(upstream),
                                                .q_rstd = pointer<const float>(kept.q_rstd),
                                                .k_rstd = pointer<const float>(kept.k_rstd),
                                                .chunk_decay = pointer<const float>(kept.chunk_decay),
                                                .anchored = pointer<const int>(kept.anchored),
                                                .error = pointer<const __nv_bfloat16>(kept.error),
                                                .states = pointer<const __nv_bfloat16>(kept.states),
                                                .solved = pointer<const __nv_bfloat16>(solved),
                                                .d_states = pointer<const __nv_bfloat16>(d_states),
                                                .d_q = pointer<__nv_bfloat16>(d_q),
                                                .d_k = pointer<__nv_bfloat16>(d_k),
                                                .d_v = pointer<__nv_bfloat16>(grads.v),
                                                .d_write_key = pointer<__nv_bfloat16>(grads.write_key),
                                                .d_beta = pointer<float>(grads.beta),
                                                .d_log_decay = grads.log_decay.data_ptr()},
         current_stream());
  grads.q = delta_rule_kernel_detail::by_key_head(d_q, problem.k.size(1));
  grads.k = delta_rule_kernel_detail::by_key_head(d_k, problem.k.size(1));
  return grads;
}

}  // namespace osdn::ops::delta_rule_detail
