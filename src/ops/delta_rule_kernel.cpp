// The delta rule by the CUDA kernels (kernels/delta_rule.h; docs/ops/delta_rule.md, "CUDA kernels"):
// workspaces and the order of the passes.

#include <atomic>

#include "kernels/delta_rule.h"
#include "ops/detail/delta_rule.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::delta_rule_detail {
namespace delta_rule_kernel_detail {

using kernels::kDeltaRuleChunk;

std::atomic<bool> only_portable = false;

template <typename T>
T* pointer(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.data_ptr()) : nullptr;
}

/// A view the kernels can read [N, heads, size], or a contiguous copy of it.
at::Tensor readable(const at::Tensor& x) {
  const bool fits = x.stride(2) == 1 && x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 &&
                    reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
  return fits || x.numel() == 0 ? x : x.contiguous();
}

kernels::DeltaRuleRows rows(const at::Tensor& x) {
  if (!x.defined()) return {};
  return {.data = pointer<const __nv_bfloat16>(x), .token_stride = x.stride(0), .head_stride = x.stride(1)};
}

/// The inputs as the kernels take them, with what keeps them alive.
struct KernelInputs {
  at::Tensor q, k, v, write_key, beta, log_decay;
  kernels::DeltaRuleInputs in;

  explicit KernelInputs(const Problem& problem)
      : q(readable(problem.q)),
        k(readable(problem.k)),
        v(readable(problem.v)),
        write_key(problem.write_key.defined() ? readable(problem.write_key) : at::Tensor()),
        beta(problem.beta.contiguous()),
        log_decay(problem.log_decay.defined() ? problem.log_decay.contiguous() : at::Tensor()) {
    const Sequences& sequences = *problem.sequences;
    const ChunkList& chunks = sequences.chunk_list(kDeltaRuleChunk);
    in = {.shape = {.offsets = pointer<const int64_t>(sequences.offsets()),
                    .order = pointer<const int64_t>(sequences.order()),
                    .chunk_offsets = pointer<const int64_t>(chunks.offsets),
                    .chunk_sequences = pointer<const int64_t>(chunks.sequences),
                    .num_tokens = sequences.num_tokens(),
                    .num_sequences = sequences.num_sequences(),
                    .num_chunks = chunks.num_chunks,
                    .num_key_heads = static_cast<int>(k.size(1)),
                    .num_value_heads = static_cast<int>(v.size(1)),
                    .key_size = static_cast<int>(k.size(2)),
                    .value_size = static_cast<int>(v.size(2))},
          .q = rows(q),
          .k = rows(k),
          .v = rows(v),
          .write_key = rows(write_key),
          .beta = pointer<const float>(beta),
          .log_decay = pointer<const float>(log_decay),
          .scale = static_cast<float>(problem.scale),
          .portable = portable_kernels()};
  }

  int64_t padded_keys() const { return kernels::delta_rule_padded_key_size(in.shape.key_size); }
  int64_t padded_values() const { return kernels::delta_rule_padded_value_size(in.shape.value_size); }
  /// [M, HV, rows, columns] in 8x8 blocks.
  at::Tensor blocks(int64_t num_rows, int64_t num_columns, at::ScalarType dtype) const {
    return at::empty({in.shape.num_chunks, in.shape.num_value_heads, num_rows, num_columns},
                     v.options().dtype(dtype));
  }
  at::Tensor state(const Problem& problem) const {  // [S, HV, K, V]
    return at::empty({in.shape.num_sequences, in.shape.num_value_heads, problem.k.size(2), problem.v.size(2)},
                     v.options().dtype(at::kFloat));
  }
};

kernels::DeltaRulePrepared prepared_pointers(const Forward& kept) {
  return {.q_rstd = pointer<float>(kept.q_rstd),
          .k_rstd = pointer<float>(kept.k_rstd),
          .inverse = pointer<__half>(kept.inverse),
          .inverse_scale = pointer<float>(kept.inverse_scale),
          .pairs = pointer<__nv_bfloat16>(kept.pairs),
          .gates = pointer<float>(kept.gates),
          .key_pairs = pointer<__nv_bfloat16>(kept.key_pairs)};
}

/// Gradients by value head [N, HV, K] to those of the key heads [N, H, K].
at::Tensor by_key_head(const at::Tensor& x, int64_t num_key_heads) {
  if (x.size(1) == num_key_heads) return x;
  return x.view({x.size(0), num_key_heads, x.size(1) / num_key_heads, x.size(2)})
      .sum(2, false, at::kFloat)
      .to(x.scalar_type());
}

}  // namespace delta_rule_kernel_detail

bool portable_kernels() { return delta_rule_kernel_detail::only_portable; }
void set_portable_kernels(bool portable) { delta_rule_kernel_detail::only_portable = portable; }

bool Problem::on_kernel_path() const {
  const auto fits = [](int64_t size, int64_t largest) {
    return size > 0 && size % 16 == 0 && size <= largest;
  };
  return v.is_cuda() && v.scalar_type() == at::kBFloat16 && !channel_decay() &&
         fits(k.size(2), kernels::kDeltaRuleMaxKeySize) && fits(v.size(2), kernels::kDeltaRuleMaxValueSize) &&
         compute_capability() >= 80;
}

Forward forward_kernel(const Problem& problem, bool keep) {
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
                                       .states = detail::pointer<__nv_bfloat16>(result.states)},
         current_stream());
  return result;
}

Gradients backward_kernel(const Problem& problem, const Forward& kept, const at::Tensor& d_o,
                          const at::Tensor& d_final) {
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
