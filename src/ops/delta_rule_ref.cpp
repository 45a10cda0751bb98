// The delta rule in plain ATen for autograd to differentiate: token by token, and in chunks
// (docs/ops/delta_rule.md).
#include <algorithm>

#include "base/error.h"
#include "ops/delta_rule.h"
#include "ops/detail/delta_rule.h"
#include "ops/l2_norm.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace delta_rule_detail {

Problem reference_problem(const DeltaRuleArgs& args) {
  Problem problem = checked(args);
  if (args.l2_normalize) {
    problem.q = l2_norm_ref(problem.q);
    problem.k = l2_norm_ref(problem.k);
  }
  return problem;
}

// The states of a scan over the steps of a chunk table: those of the sequences that have a chunk left, in the
// scan's order. Sequences end from the back of the order; their states are set aside and put together at the
// end.
class RunningStates {
 public:
  RunningStates(const Problem& problem, const ChunkTable& table, at::ScalarType type)
      : problem_(problem), table_(table) {
    const int64_t S = problem.sequences->num_sequences();
    const int64_t HV = problem.num_value_heads();
    live_ = problem.initial_state.defined()
                ? problem.initial_state.to(type).index_select(0, problem.sequences->order())
                : at::zeros({S, HV, problem.k.size(2), problem.v.size(2)}, problem.v.options().dtype(type));
  }
  // The states that step j works on: [n, HV, K, V].
  at::Tensor enter(size_t j) {
    const int64_t count = table_.step_begin[j + 1] - table_.step_begin[j];
    if (count < live_.size(0)) ended_.push_back(live_.narrow(0, count, live_.size(0) - count));
    live_ = live_.narrow(0, 0, count);
    return live_;
  }
  void leave(const at::Tensor& states) { live_ = states; }
  at::Tensor finish() {
    ended_.push_back(live_);
    std::reverse(ended_.begin(), ended_.end());
    return at::cat(ended_).index_select(0, problem_.sequences->inverse_order());
  }

 private:
  const Problem& problem_;
  const ChunkTable& table_;
  at::Tensor live_;
  std::vector<at::Tensor> ended_;
};

}  // namespace delta_rule_detail

DeltaRuleOutput delta_rule_ref(const DeltaRuleArgs& args) {
  const delta_rule_detail::Problem problem = delta_rule_detail::reference_problem(args);
  const ChunkTable& table = problem.sequences->chunks(1);
  const at::ScalarType type = accumulation_type(problem.v.scalar_type());
  const int64_t HV = problem.num_value_heads();
  const auto in_order = [&](const at::Tensor& x) {  // [N, H, D] -> [N, HV, D], rows in the scan's order
    return x.to(type).index_select(0, table.gather).repeat_interleave(HV / x.size(1), 1);
  };
  const at::Tensor q = in_order(problem.q) * problem.scale;  // [N, HV, K]
  const at::Tensor k = in_order(problem.k);                  // [N, HV, K]
  const at::Tensor w = problem.write_key.defined() ? in_order(problem.write_key) : k;
  const at::Tensor v = in_order(problem.v);                      // [N, HV, V]
  const at::Tensor beta = in_order(problem.beta.unsqueeze(-1));  // [N, HV, 1]
  at::Tensor decay;                                              // [N, HV, 1 or K]
  if (problem.scalar_decay()) decay = in_order(problem.log_decay.unsqueeze(-1)).exp();
  if (problem.channel_decay()) decay = in_order(problem.log_decay).exp();
  delta_rule_detail::RunningStates states(problem, table, type);
  std::vector<at::Tensor> outputs = {v.narrow(0, 0, 0)};
  for (size_t t = 0; t + 1 < table.step_begin.size(); ++t) {
    const int64_t begin = table.step_begin[t];
    const int64_t count = table.step_begin[t + 1] - begin;
    const auto row = [&](const at::Tensor& x) {
      return x.narrow(0, begin, count).unsqueeze(-2);
    };                                                                           // [n, HV, 1, D]
    at::Tensor state = states.enter(t);                                          // [n, HV, K, V]
    if (decay.defined()) state = state * row(decay).transpose(-1, -2);           // (eq. 1)
    const at::Tensor update = row(beta) * (row(v) - at::matmul(row(k), state));  // (eq. 2)
    state = state + row(w).transpose(-1, -2) * update;                           // (eq. 2)
    outputs.push_back(at::matmul(row(q), state).squeeze(-2));                    // (eq. 3)
    states.leave(state);
  }
  return {.o = at::cat(outputs).index_select(0, table.scatter).to(problem.v.scalar_type()),
          .final_state = states.finish()};
}

DeltaRuleOutput delta_rule_chunked(const DeltaRuleArgs& args, int64_t chunk_size) {
  if (chunk_size < 1 || (chunk_size & (chunk_size - 1)) != 0)
    throw UserError("delta_rule: chunk_size: expected a power of two, got {}", chunk_size);
  const delta_rule_detail::Problem problem = delta_rule_detail::reference_problem(args);
  const ChunkTable& table = problem.sequences->chunks(chunk_size);
  const at::ScalarType type = accumulation_type(problem.v.scalar_type());
  const int64_t HV = problem.num_value_heads();
  const auto chunked = [&](const at::Tensor& x) { return delta_rule_detail::to_chunks(x, table, HV, type); };
  const at::Tensor q = chunked(problem.q);  // [B, C, K]
  const at::Tensor k = chunked(problem.k);  // [B, C, K]
  const at::Tensor w = problem.write_key.defined() ? chunked(problem.write_key) : k;
  const at::Tensor v = chunked(problem.v);                      // [B, C, V]
  const at::Tensor beta = chunked(problem.beta.unsqueeze(-1));  // [B, C, 1]
  at::Tensor log_decay;                                         // [B, C, 1 or K]
  if (problem.scalar_decay()) log_decay = chunked(problem.log_decay.unsqueeze(-1));
  if (problem.channel_decay()) log_decay = chunked(problem.log_decay);
  const delta_rule_detail::PairDecay decay(log_decay, type);
  const at::Tensor gram = decay.gram(at::stack({q, k}, 1), w);  // [B, 2, C, C] (eq. 4)
  const at::Tensor p = gram.select(1, 0) * problem.scale;
  const at::Tensor system = gram.select(1, 1).tril(-1) * beta.transpose(1, 2);
  const auto decayed = [](const at::Tensor& x, const at::Tensor& factor) {
    return factor.defined() ? x * factor : x;
  };
  const at::Tensor q_in = decayed(q, decay.from_start) * problem.scale;
  const at::Tensor k_in = decayed(k, decay.from_start);
  const at::Tensor w_out = decayed(w, decay.to_end);
  delta_rule_detail::RunningStates states(problem, table, type);
  std::vector<at::Tensor> outputs = {v.narrow(0, 0, 0)};
  for (size_t j = 0; j + 1 < table.step_begin.size(); ++j) {
    const int64_t begin = table.step_begin[j] * HV;
    const int64_t count = table.step_begin[j + 1] * HV - begin;
    const auto rows = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
    const at::Tensor entering = states.enter(j);                               // [n, HV, K, V]
    const at::Tensor state = entering.reshape({count, k.size(2), v.size(2)});  // [n * HV, K, V]
    const at::Tensor residual = rows(v) - at::bmm(rows(k_in), state);          // (eq. 5)
    const at::Tensor error = at::linalg_solve_triangular(rows(system), residual, false, true, true);
    const at::Tensor update = rows(beta) * error;
    outputs.push_back(at::bmm(rows(q_in), state) + at::bmm(rows(p), update));  // (eq. 6)
    const at::Tensor kept = decay.whole.defined() ? state * rows(decay.whole) : state;
    states.leave((kept + at::bmm(rows(w_out).transpose(1, 2), update)).view(entering.sizes()));
  }
  return {.o = delta_rule_detail::from_chunks(at::cat(outputs), table, HV).to(problem.v.scalar_type()),
          .final_state = states.finish()};
}

}  // namespace osdn::ops
