// What the callers of the delta rule's CUDA kernels share: tensors as the kernels take them.
#pragma once

#include <cstdint>

#include "kernels/delta_rule.h"
#include "ops/detail/delta_rule.h"
#include "tensor/torch.h"

namespace osdn::ops::delta_rule_detail::delta_rule_kernel_detail {

template <typename T>
T* pointer(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.data_ptr()) : nullptr;
}

/// A view the kernels can read [N, heads, size], or a contiguous copy of it.
inline at::Tensor readable(const at::Tensor& x) {
  const bool fits = x.stride(2) == 1 && x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 &&
                    reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
  return fits || x.numel() == 0 ? x : x.contiguous();
}

inline kernels::DeltaRuleRows rows(const at::Tensor& x) {
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
    const ChunkList& chunks = sequences.chunk_list(kernels::kDeltaRuleChunk);
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
          .log_decay = problem.scalar_decay() ? pointer<const float>(log_decay) : nullptr,
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

inline kernels::DeltaRulePrepared prepared_pointers(const Forward& kept) {
  return {.q_rstd = pointer<float>(kept.q_rstd),
          .k_rstd = pointer<float>(kept.k_rstd),
          .inverse = pointer<__half>(kept.inverse),
          .inverse_scale = pointer<float>(kept.inverse_scale),
          .pairs = pointer<__nv_bfloat16>(kept.pairs),
          .gates = pointer<float>(kept.gates),
          .key_pairs = pointer<__nv_bfloat16>(kept.key_pairs)};
}

/// Gradients by value head [N, HV, K] to those of the key heads [N, H, K].
inline at::Tensor by_key_head(const at::Tensor& x, int64_t num_key_heads) {
  if (x.size(1) == num_key_heads) return x;
  return x.view({x.size(0), num_key_heads, x.size(1) / num_key_heads, x.size(2)})
      .sum(2, false, at::kFloat)
      .to(x.scalar_type());
}

}  // namespace osdn::ops::delta_rule_detail::delta_rule_kernel_detail
