// One token a sequence by the CUDA kernel (kernels/delta_rule_step.h): its arguments.
#include "kernels/delta_rule_step.h"
#include "ops/detail/delta_rule_step.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::delta_rule_detail {
namespace delta_rule_step_detail {

/// As the kernel reads it: any view of which the last dimension is contiguous.
at::Tensor readable(const at::Tensor& x) { return !x.defined() || x.stride(-1) == 1 ? x : x.contiguous(); }

kernels::DeltaRuleStepRows rows(const at::Tensor& x) {
  if (!x.defined()) return {};
  return {.data = x.data_ptr(), .token_stride = x.stride(0), .head_stride = x.stride(1)};
}

const float* numbers(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

}  // namespace delta_rule_step_detail

bool on_step_path(const Problem& problem) {
  const at::ScalarType type = problem.v.scalar_type();
  return problem.v.is_cuda() && (type == at::kBFloat16 || type == at::kFloat) &&
         problem.sequences->max_length() == 1 && has_step_kernel(problem.k.size(2), problem.v.size(2)) &&
         compute_capability() >= 80;
}

Forward forward_step(const Problem& problem) {
  namespace detail = delta_rule_step_detail;
  const at::Tensor q = detail::readable(problem.q);                  // [N, H, K]
  const at::Tensor k = detail::readable(problem.k);                  // [N, H, K]
  const at::Tensor v = detail::readable(problem.v);                  // [N, HV, V]
  const at::Tensor write_key = detail::readable(problem.write_key);  // [N, HV, K] or undefined
  const at::Tensor beta = problem.beta.contiguous();                 // [N, HV]
  at::Tensor log_decay;                                              // [N, HV], [N, HV, K] or undefined
  if (problem.log_decay.defined()) log_decay = problem.log_decay.contiguous();
  at::Tensor initial_state;  // [S, HV, K, V] or undefined
  if (problem.initial_state.defined()) {
    initial_state = problem.initial_state.contiguous();
    if (reinterpret_cast<uintptr_t>(initial_state.const_data_ptr()) % 16 != 0)
      initial_state = initial_state.clone();
  }
  const int64_t S = problem.sequences->num_sequences();
  Forward out;
  out.o = at::empty(v.sizes(), v.options());
  // A block reads its part of a state before it writes it.
  out.final_state =
      problem.overwrite && initial_state.defined() && initial_state.is_same(problem.initial_state)
          ? initial_state
          : at::empty({S, v.size(1), k.size(2), v.size(2)}, v.options().dtype(at::kFloat));
  launch(kernels::DeltaRuleStepArgs{.offsets = problem.sequences->offsets().const_data_ptr<int64_t>(),
                                    .num_sequences = S,
                                    .num_tokens = problem.v.size(0),
                                    .num_key_heads = static_cast<int>(k.size(1)),
                                    .num_value_heads = static_cast<int>(v.size(1)),
                                    .key_size = static_cast<int>(k.size(2)),
                                    .value_size = static_cast<int>(v.size(2)),
                                    .bf16 = v.scalar_type() == at::kBFloat16,
                                    .channel_decay = problem.channel_decay(),
                                    .bf16_log_decay =
                                        log_decay.defined() && log_decay.scalar_type() == at::kBFloat16,
                                    .normalize = problem.normalize,
                                    .scale = static_cast<float>(problem.scale),
                                    .q = detail::rows(q),
                                    .k = detail::rows(k),
                                    .v = detail::rows(v),
                                    .write_key = detail::rows(write_key),
                                    .beta = detail::numbers(beta),
                                    .log_decay = log_decay.defined() ? log_decay.const_data_ptr() : nullptr,
                                    .initial_state = detail::numbers(initial_state),
                                    .o = out.o.data_ptr(),
                                    .final_state = out.final_state.data_ptr<float>()},
         current_stream());
  return out;
}

}  // namespace osdn::ops::delta_rule_detail

namespace osdn::ops {

bool has_step_kernel(int64_t key_size, int64_t value_size) {
  return key_size > 0 && key_size <= kernels::kDeltaRuleStepMaxKeySize && value_size > 0 &&
         value_size % kernels::kDeltaRuleStepValueMultiple == 0;
}

}  // namespace osdn::ops
