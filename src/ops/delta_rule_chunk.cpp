// The chunk form by hand in ATen, forward and backward: the path of CUDA, and of per-channel decay
// everywhere.
#include "ops/detail/delta_rule.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops::delta_rule_detail {
namespace {

constexpr int64_t kLargestChunk = 64;

// A problem in chunk layout. B = M * HV; rows of chunk m, value head h at m * HV + h.
struct Chunks {
  const ChunkTable& table;
  int64_t HV, B, C, K, V;
  at::Tensor qk;    // [B, 2, C, K] q and k
  at::Tensor w;     // [B, C, K] write key
  at::Tensor beta;  // [B, C, 1]
  PairDecay decay;
  at::Tensor gram;   // [B, 2, C, C] <q, w> and <k, w> with decay, lower triangle (eq. 4)
  at::Tensor p;      // [B, C, C] scale <q, w> with decay, lower triangle (eq. 4)
  at::Tensor m;      // [B, C, C] <k, w> with decay, strictly lower triangle (eq. 4)
  at::Tensor q_in;   // [B, C, K] scale exp(G) o q
  at::Tensor k_in;   // [B, C, K] exp(G) o k
  at::Tensor w_out;  // [B, C, K] exp(G_C - G) o w

  int64_t steps() const { return static_cast<int64_t>(table.step_begin.size()) - 1; }
  // Rows of the chunks that step j of the scan works on; they belong to the first num_states(j) states.
  int64_t begin(int64_t j) const { return table.step_begin[static_cast<size_t>(j)] * HV; }
  int64_t num_states(int64_t j) const { return begin(j + 1) - begin(j); }
};

Chunks make_chunks(const Problem& problem) {
  const ChunkTable& table = problem.sequences->chunks(chunk_length(*problem.sequences, kLargestChunk));
  const int64_t HV = problem.num_value_heads();
  const int64_t B = table.step_begin.back() * HV;
  const int64_t C = table.chunk_size;
  const int64_t K = problem.k.size(2);
  const at::ScalarType type = accumulation_type(problem.v.scalar_type());
  const at::Tensor q = to_chunks(problem.q, table, HV, type);
  const at::Tensor k = to_chunks(problem.k, table, HV, type);
  const at::Tensor w = problem.write_key.defined() ? to_chunks(problem.write_key, table, HV, type) : k;
  at::Tensor log_decay;  // [B, C, 1 or K]
  if (problem.scalar_decay()) log_decay = to_chunks(problem.log_decay.unsqueeze(-1), table, HV, type);
  if (problem.channel_decay()) log_decay = to_chunks(problem.log_decay, table, HV, type);
  Chunks chunks{.table = table,
                .HV = HV,
                .B = B,
                .C = C,
                .K = K,
                .V = problem.v.size(2),
                .qk = at::stack({q, k}, 1),
                .w = w,
                .beta = to_chunks(problem.beta.unsqueeze(-1), table, HV, type),
                .decay = PairDecay(log_decay, type),
                .gram = {},
                .p = {},
                .m = {},
                .q_in = q * problem.scale,
                .k_in = k,
                .w_out = w};
  chunks.gram = chunks.decay.gram(chunks.qk, w);
  chunks.p = chunks.gram.select(1, 0) * problem.scale;
  chunks.m = chunks.gram.select(1, 1).tril(-1);
  if (log_decay.defined()) {
    chunks.q_in = chunks.q_in * chunks.decay.from_start;
    chunks.k_in = k * chunks.decay.from_start;
    chunks.w_out = w * chunks.decay.to_end;
  }
  return chunks;
}

// States [S, HV, K, V] in the scan's order as [S * HV, K, V]; zeros where undefined.
at::Tensor states_in_order(const at::Tensor& states, const Problem& problem, const Chunks& chunks) {
  const int64_t S = problem.sequences->num_sequences();
  if (!states.defined()) return at::zeros({S * chunks.HV, chunks.K, chunks.V}, chunks.w.options());
  return states.to(chunks.w.scalar_type())
      .index_select(0, problem.sequences->order())
      .view({S * chunks.HV, chunks.K, chunks.V});
}

at::Tensor states_in_place(const at::Tensor& states, const Problem& problem, const Chunks& chunks) {
  return states.view({problem.sequences->num_sequences(), chunks.HV, chunks.K, chunks.V})
      .index_select(0, problem.sequences->inverse_order());
}

void decay_states(at::Tensor& states, const Chunks& chunks, int64_t begin, int64_t count) {
  if (chunks.decay.whole.defined()) states.mul_(chunks.decay.whole.narrow(0, begin, count));
}

}  // namespace

Forward forward_aten(const Problem& problem, bool keep) {
  const Chunks chunks = make_chunks(problem);
  const at::Tensor system =
      chunks.m * chunks.beta.transpose(1, 2);  // [B, C, C] M diag(beta); unit diagonal implied
  const at::Tensor eye = at::eye(chunks.C, system.options()).expand({chunks.B, chunks.C, chunks.C});
  const at::Tensor inverse =
      at::linalg_solve_triangular(system, eye, false, true, true);  // [B, C, C] T' (eq. 5)
  const at::Tensor from_state = at::bmm(inverse, chunks.k_in);      // [B, C, K]
  at::Tensor error = at::bmm(inverse, to_chunks(problem.v, chunks.table, chunks.HV, system.scalar_type()));
  at::Tensor update = at::empty_like(error);                                       // [B, C, V] U
  at::Tensor states = at::empty({chunks.B, chunks.K, chunks.V}, error.options());  // before each chunk
  const at::Tensor running =
      states_in_order(problem.initial_state, problem, chunks).clone();  // [S * HV, K, V]
  for (int64_t j = 0; j < chunks.steps(); ++j) {
    const int64_t begin = chunks.begin(j);
    const int64_t count = chunks.num_states(j);
    at::Tensor state = running.narrow(0, 0, count);  // [count, K, V]
    states.narrow(0, begin, count).copy_(state);
    at::Tensor step_error = error.narrow(0, begin, count);
    step_error.baddbmm_(from_state.narrow(0, begin, count), state, 1, -1);
    at::Tensor step_update = update.narrow(0, begin, count);
    at::mul_out(step_update, step_error, chunks.beta.narrow(0, begin, count));
    decay_states(state, chunks, begin, count);
    state.baddbmm_(chunks.w_out.narrow(0, begin, count).transpose(1, 2), step_update);
  }
  at::Tensor o = at::bmm(chunks.q_in, states);  // [B, C, V]
  o.baddbmm_(chunks.p, update);
  Forward result{.o = from_chunks(o, chunks.table, chunks.HV).to(problem.v.scalar_type()),
                 .final_state = states_in_place(running, problem, chunks),
                 .inverse = {},
                 .error = {},
                 .states = {}};
  if (keep) {
    result.inverse = inverse;
    result.error = error;
    result.states = states;
  }
  return result;
}

Gradients backward_aten(const Problem& problem, const Forward& kept, const at::Tensor& d_o,
                        const at::Tensor& d_final) {
  const Chunks chunks = make_chunks(problem);
  const at::ScalarType type = chunks.w.scalar_type();
  const int64_t B = chunks.B;
  const int64_t C = chunks.C;
  const int64_t K = chunks.K;
  const int64_t V = chunks.V;
  const at::Tensor update = kept.error * chunks.beta;  // [B, C, V] U
  const at::Tensor up =
      d_o.defined() ? to_chunks(d_o, chunks.table, chunks.HV, type) : at::zeros_like(update);
  const at::Tensor inverse_t = kept.inverse.transpose(1, 2);  // [B, C, C]
  at::Tensor d_update =
      at::bmm(chunks.p.transpose(1, 2), up);                  // [B, C, V] the chunk's own part of dU (eq. 7)
  at::Tensor z = at::bmm(inverse_t, d_update * chunks.beta);  // [B, C, V] Z, completed by the scan
  const at::Tensor z_of_state = at::bmm(inverse_t, chunks.w_out * chunks.beta);  // [B, C, K]
  const at::Tensor d_state_of_o = at::bmm(chunks.q_in.transpose(1, 2), up);      // [B, K, V]
  at::Tensor d_ends = at::empty({B, K, V}, up.options());                        // dS after each chunk
  const at::Tensor running = states_in_order(d_final, problem, chunks).clone();  // [S * HV, K, V]
  for (int64_t j = chunks.steps() - 1; j >= 0; --j) {
    const int64_t begin = chunks.begin(j);
    const int64_t count = chunks.num_states(j);
    at::Tensor d_state = running.narrow(0, 0, count);  // [count, K, V]
    d_ends.narrow(0, begin, count).copy_(d_state);
    at::Tensor step_z = z.narrow(0, begin, count);
    step_z.baddbmm_(z_of_state.narrow(0, begin, count), d_state);
    decay_states(d_state, chunks, begin, count);
    d_state.add_(d_state_of_o.narrow(0, begin, count));
    d_state.baddbmm_(chunks.k_in.narrow(0, begin, count).transpose(1, 2), step_z, 1, -1);
  }
  d_update.baddbmm_(chunks.w_out, d_ends);
  const at::Tensor d_beta =
      ((d_update - at::bmm(chunks.m.transpose(1, 2), z)) * kept.error).sum(-1, true);  // (eq. 8)

  const at::Tensor stacked = at::stack({up, z.neg()}, 1).view({B, 2 * C, V});  // [dO; -Z]
  at::Tensor d_gram = at::bmm(stacked, update.transpose(1, 2)).view({B, 2, C, C});
  d_gram.select(1, 0).mul_(problem.scale);
  d_gram.tril_();
  d_gram.select(1, 1).diagonal(0, 1, 2).zero_();
  PairGradients pairs{.x = at::bmm(stacked, kept.states.transpose(1, 2)).view({B, 2, C, K}),
                      .y = at::bmm(update, d_ends.transpose(1, 2)),
                      .log_decay = {}};
  pairs.x.select(1, 0).mul_(problem.scale);
  if (problem.log_decay.defined()) {
    pairs.x.mul_(chunks.decay.from_start.unsqueeze(1));
    pairs.y.mul_(chunks.decay.to_end);
    // A token decays the incoming state for itself and later ones and for the end state, and the write keys
    // before it (eq. 10).
    const at::Tensor through = (chunks.decay.whole * kept.states * d_ends).sum(2).unsqueeze(1);  // [B, 1, K]
    pairs.log_decay = sum_from((chunks.qk * pairs.x).sum(1), 1) + sum_before(chunks.w * pairs.y, 1) + through;
    if (problem.scalar_decay()) pairs.log_decay = pairs.log_decay.sum(-1, true);
  }
  chunks.decay.add_gram_gradients(d_gram, chunks.gram, chunks.qk, chunks.w, pairs);

  const auto per_token = [&](const at::Tensor& x) { return from_chunks(x, chunks.table, chunks.HV); };
  Gradients grads;
  if (problem.channel_decay()) grads.log_decay = per_token(pairs.log_decay);
  if (problem.scalar_decay()) grads.log_decay = per_token(pairs.log_decay).squeeze(-1);
  const int64_t N = problem.v.size(0);
  const int64_t H = problem.k.size(1);
  const auto per_key_head = [&](const at::Tensor& x) {
    const at::Tensor all = per_token(x);  // [N, HV, K]
    return chunks.HV == H ? all : all.view({N, H, chunks.HV / H, K}).sum(2);
  };
  at::Tensor d_k = pairs.x.select(1, 1);
  if (problem.write_key.defined())
    grads.write_key = per_token(pairs.y);
  else
    d_k = d_k + pairs.y;
  grads.q = per_key_head(pairs.x.select(1, 0).contiguous());
  grads.k = per_key_head(d_k.contiguous());
  grads.v = per_token(z);
  grads.beta = per_token(d_beta).squeeze(-1);
  if (problem.initial_state.defined()) grads.initial_state = states_in_place(running, problem, chunks);
  return grads;
}

}  // namespace osdn::ops::delta_rule_detail
