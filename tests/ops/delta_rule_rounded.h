// The chunk form of the delta rule (docs/ops/delta_rule.md eq. 4-6) as tensor cores compute it: fp32 sums of
// products of which every operand is rounded to bf16, in the forward and in the backward. The error that bf16
// costs by itself, to which an implementation's is compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/delta_rule.h"
#include "tests/support/test.h"

namespace osdn::ops::delta_rule_rounded {

inline at::Tensor to_bf16_and_back(const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); }

/// a [.., n, k] times b [.., k, m].
class RoundedProduct : public torch::autograd::Function<RoundedProduct> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor left = to_bf16_and_back(a);
    const at::Tensor right = to_bf16_and_back(b);
    ctx->save_for_backward({left, right});
    return left.matmul(right);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list upstream) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor up = to_bf16_and_back(upstream[0]);
    return {up.matmul(saved[1].mT()), saved[0].mT().matmul(up)};
  }
};

inline at::Tensor product(const at::Tensor& a, const at::Tensor& b) { return RoundedProduct::apply(a, b); }

/// <x_r o exp(G_r - G_s), w_s> for s <= r, 0 above. x, w [HV, C, K]; G [HV, C, 1 or K] or undefined.
inline at::Tensor pairs(const at::Tensor& x, const at::Tensor& w, const at::Tensor& sums) {
  if (!sums.defined()) return product(x, w.mT()).tril();
  const int64_t C = x.size(1);
  if (sums.size(2) == 1) {
    const at::Tensor later = at::ones({C, C}, x.options().requires_grad(false).dtype(at::kBool)).triu(1);
    return product(x, w.mT()) * (sums - sums.mT()).masked_fill(later, -1e30).exp();
  }
  // Blocks of 16 rows, exponents anchored at a block's first row.
  std::vector<at::Tensor> rows;
  for (int64_t begin = 0; begin < C; begin += 16) {
    const int64_t count = std::min<int64_t>(16, C - begin);
    const at::Tensor anchor = sums.narrow(1, begin, 1);
    const at::Tensor left = x.narrow(1, begin, count) * (sums.narrow(1, begin, count) - anchor).exp();
    const at::Tensor right =
        w.narrow(1, 0, begin + count) * (anchor - sums.narrow(1, 0, begin + count)).exp();
    rows.push_back(at::constant_pad_nd(product(left, right.mT()), {0, C - begin - count}));
  }
  return at::cat(rows, 1).tril();
}

inline at::Tensor normalized(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kFloat);
  return wide / (wide.square().sum(-1, true) + 1e-6).sqrt();
}

inline DeltaRuleOutput chunk_form(const DeltaRuleArgs& args) {
  const int64_t group = args.v.size(1) / args.q.size(1);
  const auto by_value_head = [group](const at::Tensor& x) { return x.repeat_interleave(group, 1); };
  const auto as_given = [](const at::Tensor& x) { return x.to(at::kFloat); };
  const at::Tensor q = by_value_head(args.l2_normalize ? normalized(args.q) : as_given(args.q));
  const at::Tensor k = by_value_head(args.l2_normalize ? normalized(args.k) : as_given(args.k));
  const at::Tensor w = args.write_key.defined() ? as_given(args.write_key) : k;
  const at::Tensor v = as_given(args.v);
  const double scale = args.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(2))));
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> states;
  const std::vector<int64_t>& offsets = args.sequences->host_offsets();
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    at::Tensor state = args.initial_state.defined()
                           ? args.initial_state[static_cast<int64_t>(s)]
                           : at::zeros({v.size(1), k.size(2), v.size(2)}, v.options().requires_grad(false));
    for (int64_t begin = offsets[s]; begin < offsets[s + 1]; begin += 64) {
      const int64_t C = std::min<int64_t>(64, offsets[s + 1] - begin);
      const auto chunk = [=](const at::Tensor& x) { return x.narrow(0, begin, C).transpose(0, 1); };
      const at::Tensor Q = chunk(q);  // [HV, C, K]
      const at::Tensor K = chunk(k);
      const at::Tensor W = chunk(w);
      const at::Tensor V = chunk(v);             // [HV, C, V]
      const at::Tensor beta = chunk(args.beta);  // [HV, C]
      at::Tensor sums;                           // [HV, C, 1 or K]
      at::Tensor from_start = at::ones({1}, V.options().requires_grad(false));
      at::Tensor to_end = from_start;
      at::Tensor whole = from_start;
      if (args.log_decay.defined()) {
        const at::Tensor gate = as_given(chunk(args.log_decay));
        sums = (gate.dim() == 2 ? gate.unsqueeze(2) : gate).cumsum(1);
        const at::Tensor last = sums.narrow(1, C - 1, 1);
        from_start = sums.exp();
        to_end = (last - sums).exp();
        whole = last.exp().mT();
      }
      const at::Tensor system = pairs(K, W, sums).tril(-1) * beta.unsqueeze(1);  // [HV, C, C]
      const at::Tensor identity = at::eye(C, V.options().requires_grad(false)).expand_as(system);
      const at::Tensor inverse = at::linalg_solve_triangular(system + identity, identity, false, true, true);
      const at::Tensor error = product(inverse, V - product(from_start * K, state));
      const at::Tensor written = beta.unsqueeze(2) * error;
      outputs.push_back(
          (scale * (product(from_start * Q, state) + product(pairs(Q, W, sums), written))).transpose(0, 1));
      state = whole * state + product((to_end * W).mT(), written);
    }
    states.push_back(state);
  }
  return {.o = outputs.empty() ? v.new_empty({0, v.size(1), v.size(2)})
                               : at::cat(outputs).to(args.v.scalar_type()),
          .final_state = at::stack(states)};
}

}  // namespace osdn::ops::delta_rule_rounded
