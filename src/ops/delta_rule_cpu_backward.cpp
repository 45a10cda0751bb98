// Backward of the chunk form on the CPU: one task per sequence and key head, the value heads of a group in
// order (docs/ops/delta_rule.md, eq. 7-10).
#include <algorithm>
#include <utility>

#include "ops/detail/delta_rule_cpu.h"
#include "tensor/torch.h"

namespace osdn::ops::delta_rule_detail {
namespace {

// Where the gradients of a problem go.
template <typename T>
struct Outputs {
  T* q;          // [N, H, K] zeroed; value heads add
  T* k;          // [N, H, K] zeroed; value heads add
  T* v;          // [N, HV, V]
  T* beta;       // [N, HV]
  T* w;          // [N, HV, K] or null: added to k
  T* log_decay;  // [N, HV] or null
};

// The backward of one chunk after another, last to first.
template <typename T>
class ChunkBackward {
 public:
  ChunkBackward(const Inputs<T>& in, const Outputs<T>& out)
      : in_(in),
        out_(out),
        arena_(Chunk<T>::elements(in) + 3 * in.Kp * in.Vp + kChunk * (4 * in.Vp + 3 * in.Kp) +
               2 * kChunk * kChunk + kChunk * in.Vp + kChunk),
        chunk_(in, arena_),
        d_state_(arena_.take(in.Kp * in.Vp)),
        state_t_(arena_.take(in.Kp * in.Vp)),
        d_state_t_(arena_.take(in.Kp * in.Vp)),
        up_(arena_.take(kChunk * in.Vp)),
        f_(arena_.take(kChunk * in.Vp)),
        z_(arena_.take(kChunk * in.Vp)),
        work_(arena_.take(kChunk * in.Vp)),
        dq_(arena_.take(kChunk * in.Kp)),
        dk_(arena_.take(kChunk * in.Kp)),
        dw_(arena_.take(kChunk * in.Kp)),
        dp_(arena_.take(kChunk * kChunk)),
        dm_(arena_.take(kChunk * kChunk)),
        u_t_(arena_.take(kChunk * in.Vp)),
        d_log_(arena_.take(kChunk)) {}

  /// Gradient of the state after the sequence on entry, of the state before it on return: [Kp, Vp].
  T* d_state() { return d_state_; }

  /// `state` [Kp, Vp] before the chunk; `error` and `d_o` [count, HV, V] of this head, d_o may be null.
  void run(int64_t token, int64_t count, int64_t head, const T* state, const T* error, const T* d_o) {
    chunk_.load(token, count, head);
    const int64_t rows = chunk_.rows;
    pack(error, in_.HV * in_.V, count, in_.V, chunk_.e, rows, in_.Vp);
    scale_rows(chunk_.e, chunk_.beta, T(1), rows, in_.Vp, chunk_.u);
    pack(d_o, in_.HV * in_.V, count, in_.V, up_, rows, in_.Vp);
    solve_transposed();
    pair_gradients();
    input_gradients(state);
    if (in_.log_decay) store_decay_gradient(state);
    store();
    // dS before the chunk.                                                                          (eq. 9)
    chunk_.decay(d_state_);
    add_state_gradient(chunk_.q, up_, in_.scale);
    add_state_gradient(chunk_.k, z_, T(-1));
  }

 private:
  // dU, then F = dU - M^T Z and Z = beta o F from the last row up; dbeta = <F, E>.                  (eq. 7,
  // 8)
  void solve_transposed() {
    const int64_t rows = chunk_.rows;
    gemm<T>({.m = rows,
             .n = in_.Vp,
             .k = in_.Kp,
             .a = chunk_.w,
             .a_row = in_.Kp,
             .b = d_state_,
             .b_row = in_.Vp,
             .c = f_,
             .c_row = in_.Vp});
    scale_rows(f_, chunk_.to_end, T(1), rows, in_.Vp, f_);
    gemm<T>({.m = rows,
             .n = in_.Vp,
             .k = rows,
             .a = chunk_.p,
             .a_row = 1,
             .a_column = kChunk,
             .b = up_,
             .b_row = in_.Vp,
             .c = f_,
             .c_row = in_.Vp,
             .accumulate = true,
             .skip = Skip::kLowerA});
    for (int64_t i = rows - small_gemm::kRows; i >= 0; i -= small_gemm::kRows) {
      const int64_t below = i + small_gemm::kRows;
      if (below < rows)
        gemm<T>({.m = small_gemm::kRows,
                 .n = in_.Vp,
                 .k = rows - below,
                 .a = chunk_.m + below * kChunk + i,
                 .a_row = 1,
                 .a_column = kChunk,
                 .b = z_ + below * in_.Vp,
                 .b_row = in_.Vp,
                 .c = f_ + i * in_.Vp,
                 .c_row = in_.Vp,
                 .alpha = -1,
                 .accumulate = true});
      for (int64_t r = below - 1; r >= i; --r) {
        T* f_row = f_ + r * in_.Vp;
        for (int64_t s = r + 1; s < below; ++s) {
          const T weight = chunk_.m[s * kChunk + r];
          const T* z_row = z_ + s * in_.Vp;
          for (int64_t c = 0; c < in_.Vp; ++c) f_row[c] -= weight * z_row[c];
        }
        for (int64_t c = 0; c < in_.Vp; ++c) z_[r * in_.Vp + c] = chunk_.beta[r] * f_row[c];
      }
    }
    for (int64_t r = 0; r < chunk_.count; ++r)
      out_.beta[(chunk_.token + r) * in_.HV + chunk_.head] =
          dot(f_ + r * in_.Vp, chunk_.e + r * in_.Vp, in_.Vp);
  }

  // dp_ = scale tril(dO U^T) and dm_ = -tril(Z U^T, -1), both times the pair's decay; the pairs' share of the
  // decay gradient. (eq. 8, 10)
  void pair_gradients() {
    const int64_t rows = chunk_.rows;
    const int64_t columns = padded(rows);
    transpose(chunk_.u, rows, in_.Vp, in_.Vp, u_t_, kChunk);
    for (int64_t c = 0; c < in_.Vp; ++c)
      std::fill(u_t_ + c * kChunk + rows, u_t_ + c * kChunk + columns, T(0));
    for (const auto& [from, to] : {std::pair(up_, dp_), std::pair(z_, dm_)})
      gemm<T>({.m = rows,
               .n = columns,
               .k = in_.Vp,
               .a = from,
               .a_row = in_.Vp,
               .b = u_t_,
               .b_row = kChunk,
               .c = to,
               .c_row = kChunk,
               .skip = Skip::kUpperC});
    std::fill_n(d_log_, rows, T(0));
    for (int64_t r = 0; r < rows; ++r) {
      T* dp = dp_ + r * kChunk;
      T* dm = dm_ + r * kChunk;
      if (in_.log_decay) {
        const T* pair = chunk_.pairs + r * kChunk;
        const T* p = chunk_.p + r * kChunk;
        const T* m = chunk_.m + r * kChunk;
        T before = 0;  // of the columns before t
        for (int64_t t = 0; t <= r; ++t) {
          d_log_[t] += before;
          before += dp[t] * p[t] - dm[t] * m[t];
          dp[t] *= in_.scale * pair[t];
          dm[t] *= -pair[t];
        }
      } else {
        for (int64_t t = 0; t <= r; ++t) {
          dp[t] *= in_.scale;
          dm[t] = -dm[t];
        }
      }
      std::fill(dp + r + 1, dp + kChunk, T(0));
      std::fill(dm + r, dm + kChunk, T(0));
    }
  }

  // dq_, dk_ and dw_: first through the states, then through the pairs.                                 (eq.
  // 9)
  void input_gradients(const T* state) {
    const int64_t rows = chunk_.rows;
    transpose(state, in_.Kp, in_.Vp, in_.Vp, state_t_, in_.Kp);
    transpose(d_state_, in_.Kp, in_.Vp, in_.Vp, d_state_t_, in_.Kp);
    const auto through_state = [&](const T* from, const T* transposed, const T* factor, T common, T* to) {
      gemm<T>({.m = rows,
               .n = in_.Kp,
               .k = in_.Vp,
               .a = from,
               .a_row = in_.Vp,
               .b = transposed,
               .b_row = in_.Kp,
               .c = to,
               .c_row = in_.Kp});
      scale_rows(to, factor, common, rows, in_.Kp, to);
    };
    through_state(up_, state_t_, chunk_.from_start, in_.scale, dq_);
    through_state(z_, state_t_, chunk_.from_start, T(-1), dk_);
    through_state(chunk_.u, d_state_t_, chunk_.to_end, T(1), dw_);
    if (in_.log_decay) {
      // A token decays the incoming state for itself and later ones, and the write keys before it.
      T from_here = 0;
      for (int64_t t = rows - 1; t >= 0; --t) {
        from_here += dot(chunk_.q + t * in_.Kp, dq_ + t * in_.Kp, in_.Kp) +
                     dot(chunk_.k + t * in_.Kp, dk_ + t * in_.Kp, in_.Kp);
        d_log_[t] += from_here;
      }
      T before = 0;
      for (int64_t t = 0; t < rows; ++t) {
        d_log_[t] += before;
        before += dot(chunk_.w + t * in_.Kp, dw_ + t * in_.Kp, in_.Kp);
      }
    }
    const auto through_pairs = [&](const T* weights, bool transposed, const T* from, T* to) {
      gemm<T>({.m = rows,
               .n = in_.Kp,
               .k = rows,
               .a = weights,
               .a_row = transposed ? 1 : kChunk,
               .a_column = transposed ? kChunk : 1,
               .b = from,
               .b_row = in_.Kp,
               .c = to,
               .c_row = in_.Kp,
               .accumulate = true,
               .skip = transposed ? Skip::kLowerA : Skip::kUpperA});
    };
    through_pairs(dp_, false, chunk_.w, dq_);
    through_pairs(dm_, false, chunk_.w, dk_);
    through_pairs(dp_, true, chunk_.q, dw_);
    through_pairs(dm_, true, chunk_.k, dw_);
  }

  void store_decay_gradient(const T* state) {
    const T through = chunk_.whole * dot(state, d_state_, in_.Kp * in_.Vp);
    for (int64_t r = 0; r < chunk_.count; ++r)
      out_.log_decay[(chunk_.token + r) * in_.HV + chunk_.head] = d_log_[r] + through;
  }

  void store() {
    for (int64_t r = 0; r < chunk_.count; ++r) {
      const int64_t key = ((chunk_.token + r) * in_.H + in_.key_head(chunk_.head)) * in_.K;
      const int64_t value = (chunk_.token + r) * in_.HV + chunk_.head;
      const T* dq = dq_ + r * in_.Kp;
      const T* dk = dk_ + r * in_.Kp;
      const T* dw = dw_ + r * in_.Kp;
      for (int64_t c = 0; c < in_.K; ++c) out_.q[key + c] += dq[c];
      if (out_.w) {
        for (int64_t c = 0; c < in_.K; ++c) out_.k[key + c] += dk[c];
        std::copy_n(dw, in_.K, out_.w + value * in_.K);
      } else {
        for (int64_t c = 0; c < in_.K; ++c) out_.k[key + c] += dk[c] + dw[c];
      }
      std::copy_n(z_ + r * in_.Vp, in_.V, out_.v + value * in_.V);
    }
  }

  // d_state_ += common * keys^T (from_start o rows)
  void add_state_gradient(const T* keys, const T* rows, T common) {
    scale_rows(rows, chunk_.from_start, common, chunk_.rows, in_.Vp, work_);
    gemm<T>({.m = in_.Kp,
             .n = in_.Vp,
             .k = chunk_.rows,
             .a = keys,
             .a_row = 1,
             .a_column = in_.Kp,
             .b = work_,
             .b_row = in_.Vp,
             .c = d_state_,
             .c_row = in_.Vp,
             .accumulate = true});
  }

  const Inputs<T>& in_;
  const Outputs<T>& out_;
  Arena<T> arena_;
  Chunk<T> chunk_;
  T *d_state_, *state_t_, *d_state_t_;  // [Kp, Vp]; transposed: [Vp, Kp]
  T *up_, *f_, *z_, *work_;             // [C, Vp]
  T *dq_, *dk_, *dw_;                   // [C, Kp]
  T *dp_, *dm_;                         // [C, C]
  T* u_t_;                              // [Vp, C]
  T* d_log_;                            // [C]
};

template <typename T>
Gradients backward_typed(const Problem& problem, const Forward& kept, const at::Tensor& d_o,
                         const at::Tensor& d_final) {
  const Inputs<T> in(problem);
  const auto options = problem.v.options().dtype(at::CppTypeToScalarType<T>::value);
  const auto like = [&](const at::Tensor& x) { return at::empty(x.sizes(), options); };
  Gradients grads;
  grads.q = like(problem.q).zero_();
  grads.k = like(problem.k).zero_();
  grads.v = like(problem.v);
  grads.beta = like(problem.beta);
  if (in.w) grads.write_key = like(problem.write_key);
  if (in.log_decay) grads.log_decay = like(problem.log_decay);
  const at::Tensor d_states = d_final.defined() ? d_final.to(options).clone(at::MemoryFormat::Contiguous)
                                                : at::zeros({in.S, in.HV, in.K, in.V}, options);
  const at::Tensor up = d_o.defined() ? d_o.to(options).contiguous() : at::Tensor();  // [N, HV, V]
  const auto data = [](const at::Tensor& x) {
    return x.defined() ? x.template mutable_data_ptr<T>() : nullptr;
  };
  const Outputs<T> out{.q = data(grads.q),
                       .k = data(grads.k),
                       .v = data(grads.v),
                       .beta = data(grads.beta),
                       .w = data(grads.write_key),
                       .log_decay = data(grads.log_decay)};
  T* d_states_data = data(d_states);
  const T* up_data = up.defined() ? up.const_data_ptr<T>() : nullptr;
  const T* states = kept.states.const_data_ptr<T>();
  const T* error = kept.error.const_data_ptr<T>();
  const int64_t group = in.HV / in.H;
  at::parallel_for(0, in.S * in.H, 1, [&](int64_t first, int64_t last) {
    ChunkBackward<T> backward(in, out);
    for (int64_t task = first * group; task < last * group; ++task) {
      const int64_t sequence = task / in.HV;
      const int64_t head = task % in.HV;
      T* own_state = d_states_data + task * in.K * in.V;
      pack(own_state, in.V, in.K, in.V, backward.d_state(), in.Kp, in.Vp);
      for (int64_t j = in.num_chunks(sequence) - 1; j >= 0; --j) {
        const int64_t done = j * kChunk;
        const int64_t token = in.begin(sequence) + done;
        const int64_t value = (token * in.HV + head) * in.V;
        backward.run(token, std::min(kChunk, in.length(sequence) - done), head,
                     states + in.state_at(sequence, j, head), error + value,
                     up_data ? up_data + value : nullptr);
      }
      for (int64_t i = 0; i < in.K; ++i)
        std::copy_n(backward.d_state() + i * in.Vp, in.V, own_state + i * in.V);
    }
  });
  if (problem.initial_state.defined()) grads.initial_state = d_states;
  return grads;
}

}  // namespace

Gradients backward_cpu(const Problem& problem, const Forward& kept, const at::Tensor& d_o,
                       const at::Tensor& d_final) {
  return problem.v.scalar_type() == at::kDouble ? backward_typed<double>(problem, kept, d_o, d_final)
                                                : backward_typed<float>(problem, kept, d_o, d_final);
}

}  // namespace osdn::ops::delta_rule_detail
