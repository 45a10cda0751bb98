// The CPU path of the delta rule, what its two passes share: the problem as plain pointers, and one chunk
// with everything that both need of it (docs/ops/delta_rule.md, eq. 4-6).
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ops/detail/delta_rule.h"
#include "ops/detail/simd_math.h"
#include "ops/detail/small_gemm.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops::delta_rule_detail {

using small_gemm::Skip;

// Within a tenth of the best of 16, 32 and 64 at head sizes 32 to 128: shorter chunks keep more states,
// longer ones spend more on the triangles.
inline constexpr int64_t kChunk = 32;

inline int64_t padded(int64_t width) {
  return (width + small_gemm::kColumns - 1) / small_gemm::kColumns * small_gemm::kColumns;
}

// Plain pointers and sizes of a problem.
template <typename T>
struct Inputs {
  at::Tensor q_tensor, k_tensor, v_tensor, beta_tensor, w_tensor,
      decay_tensor;  // keep the memory below alive
  int64_t S, H, HV, K, V;
  int64_t Kp, Vp;      // padded to whole vectors
  const T* q;          // [N, H, K]
  const T* k;          // [N, H, K]
  const T* v;          // [N, HV, V]
  const T* beta;       // [N, HV]
  const T* w;          // [N, HV, K] or null: k
  const T* log_decay;  // [N, HV] or null
  T scale;
  const std::vector<int64_t>* offsets;  // [S + 1]
  std::vector<int64_t> first_chunk;     // [S + 1]

  explicit Inputs(const Problem& p)
      : S(p.sequences->num_sequences()),
        H(p.k.size(1)),
        HV(p.num_value_heads()),
        K(p.k.size(2)),
        V(p.v.size(2)),
        Kp(padded(K)),
        Vp(padded(V)),
        scale(static_cast<T>(p.scale)),
        offsets(&p.sequences->host_offsets()) {
    const at::ScalarType type = accumulation_type(p.v.scalar_type());
    const auto plain = [type](at::Tensor& keep, const at::Tensor& x) -> const T* {
      if (!x.defined()) return nullptr;
      keep = x.to(type).contiguous();
      return keep.template const_data_ptr<T>();
    };
    q = plain(q_tensor, p.q);
    k = plain(k_tensor, p.k);
    v = plain(v_tensor, p.v);
    beta = plain(beta_tensor, p.beta);
    w = plain(w_tensor, p.write_key);
    log_decay = plain(decay_tensor, p.log_decay);
    first_chunk.push_back(0);
    for (int64_t s = 0; s < S; ++s)
      first_chunk.push_back(first_chunk.back() + (length(s) + kChunk - 1) / kChunk);
  }
  int64_t begin(int64_t s) const { return (*offsets)[static_cast<size_t>(s)]; }
  int64_t length(int64_t s) const { return begin(s + 1) - begin(s); }
  int64_t num_chunks(int64_t s) const {
    return first_chunk[static_cast<size_t>(s) + 1] - first_chunk[static_cast<size_t>(s)];
  }
  int64_t key_head(int64_t head) const { return head / (HV / H); }
  // Of one head's state before a chunk among the kept ones: [chunks, HV, Kp, Vp].
  int64_t state_at(int64_t s, int64_t chunk, int64_t head) const {
    return ((first_chunk[static_cast<size_t>(s)] + chunk) * HV + head) * Kp * Vp;
  }
};

template <typename T>
void gemm(const small_gemm::Product<T>& product) {
  small_gemm::run(product);
}

// from [rows, columns] to [columns, rows], both with padded rows.
template <typename T>
void transpose(const T* from, int64_t rows, int64_t columns, int64_t from_row, T* to, int64_t to_row) {
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) to[c * to_row + r] = from[r * from_row + c];
}

// `count` rows of `width`, `stride` apart, to `rows` rows of `to_width`; the rest is zero. Null: all zero.
template <typename T>
void pack(const T* from, int64_t stride, int64_t count, int64_t width, T* to, int64_t rows,
          int64_t to_width) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t filled = from && r < count ? width : 0;
    if (filled > 0) std::copy_n(from + r * stride, width, to + r * to_width);
    std::fill(to + r * to_width + filled, to + (r + 1) * to_width, T(0));
  }
}

// to[r] = factor[r] * from[r], row by row; `from` and `to` may be the same.
template <typename T>
void scale_rows(const T* from, const T* factor, T common, int64_t rows, int64_t width, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    const T f = common * factor[r];
    for (int64_t c = 0; c < width; ++c) to[r * width + c] = f * from[r * width + c];
  }
}

template <typename T>
T dot(const T* a, const T* b, int64_t n) {
  return simd::sum<T>(n, [=](int64_t i) { return a[i] * b[i]; });
}

// exp of a sum of log-decays; 0 where it would be denormal, which would slow down every product it enters.
template <typename T>
T decay_factor(double log_decay) {
  constexpr double kSmallest = sizeof(T) == sizeof(double) ? -700 : -80;
  return log_decay < kSmallest ? T(0) : simd::exp(static_cast<T>(log_decay));
}

// Working memory of one thread: carved out of one allocation, each part on its own cache lines.
template <typename T>
class Arena {
 public:
  explicit Arena(int64_t elements) : memory_(at::zeros({elements}, at::CppTypeToScalarType<T>::value)) {}
  T* take(int64_t elements) {
    T* part = memory_.template mutable_data_ptr<T>() + used_;
    used_ += elements;
    return part;
  }

 private:
  at::Tensor memory_;  // [elements]
  int64_t used_ = 0;
};

// One chunk of one value head. Rows are padded to a multiple of small_gemm::kRows, columns to whole vectors;
// padding rows are zero with beta 0, so they neither read nor write anything.
template <typename T>
struct Chunk {
  const Inputs<T>& in;
  int64_t token = 0;  // first
  int64_t head = 0;
  int64_t count = 0;  // tokens
  int64_t rows = 0;   // count, padded
  T whole = 1;        // exp(G_C)
  T *q, *k, *w;       // [C, Kp]
  T *v, *e, *u;       // [C, Vp]
  T *p, *m, *pairs;  // [C, C] scale <q, w>, <k, w> and exp(G_r - G_s), zero above the diagonal (m: and on it)
  T* w_t;            // [Kp, C]
  T *beta, *from_start, *to_end;  // [C]
  std::vector<double> sums;       // [C] G

  Chunk(const Inputs<T>& inputs, Arena<T>& arena)
      : in(inputs),
        q(arena.take(kChunk * in.Kp)),
        k(arena.take(kChunk * in.Kp)),
        w(arena.take(kChunk * in.Kp)),
        v(arena.take(kChunk * in.Vp)),
        e(arena.take(kChunk * in.Vp)),
        u(arena.take(kChunk * in.Vp)),
        p(arena.take(kChunk * kChunk)),
        m(arena.take(kChunk * kChunk)),
        pairs(arena.take(kChunk * kChunk)),
        w_t(arena.take(kChunk * in.Kp)),
        beta(arena.take(kChunk)),
        from_start(arena.take(kChunk)),
        to_end(arena.take(kChunk)),
        sums(kChunk) {}
  static int64_t elements(const Inputs<T>& in) {
    return kChunk * (4 * in.Kp + 3 * in.Vp) + 3 * kChunk * kChunk + 3 * kChunk;
  }

  // Reads the chunk and computes what both passes need: p, m and the decay factors.                    (eq.
  // 4)
  void load(int64_t first_token, int64_t tokens, int64_t value_head) {
    token = first_token;
    head = value_head;
    count = tokens;
    rows = (count + small_gemm::kRows - 1) / small_gemm::kRows * small_gemm::kRows;
    const int64_t key = (token * in.H + in.key_head(head)) * in.K;
    pack(in.q + key, in.H * in.K, count, in.K, q, rows, in.Kp);
    pack(in.k + key, in.H * in.K, count, in.K, k, rows, in.Kp);
    if (in.w)
      pack(in.w + (token * in.HV + head) * in.K, in.HV * in.K, count, in.K, w, rows, in.Kp);
    else
      std::copy_n(k, rows * in.Kp, w);
    for (int64_t r = 0; r < rows; ++r) beta[r] = r < count ? in.beta[(token + r) * in.HV + head] : T(0);
    load_decay();
    transpose(w, rows, in.Kp, in.Kp, w_t, kChunk);
    const int64_t columns = padded(rows);
    for (int64_t c = 0; c < in.Kp; ++c) std::fill(w_t + c * kChunk + rows, w_t + c * kChunk + columns, T(0));
    for (const auto& [from, to] : {std::pair(q, p), std::pair(k, m)})
      gemm<T>({.m = rows,
               .n = columns,
               .k = in.Kp,
               .a = from,
               .a_row = in.Kp,
               .b = w_t,
               .b_row = kChunk,
               .c = to,
               .c_row = kChunk,
               .skip = Skip::kUpperC});
    for (int64_t r = 0; r < rows; ++r) {
      T* p_row = p + r * kChunk;
      T* m_row = m + r * kChunk;
      const T* pair = pairs + r * kChunk;
      for (int64_t s = 0; s <= r; ++s) p_row[s] *= in.log_decay ? in.scale * pair[s] : in.scale;
      if (in.log_decay)
        for (int64_t s = 0; s < r; ++s) m_row[s] *= pair[s];
      std::fill(p_row + r + 1, p_row + kChunk, T(0));
      std::fill(m_row + r, m_row + kChunk, T(0));
    }
  }

  // u and e of the chunk from the state before it, [Kp, Vp]; v is loaded, `work` is [C, Vp].           (eq.
  // 5)
  void solve(const T* state, T* work) {
    pack(in.v + (token * in.HV + head) * in.V, in.HV * in.V, count, in.V, v, rows, in.Vp);
    gemm<T>({.m = rows,
             .n = in.Vp,
             .k = in.Kp,
             .a = k,
             .a_row = in.Kp,
             .b = state,
             .b_row = in.Vp,
             .c = work,
             .c_row = in.Vp});
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < in.Vp; ++c)
        e[r * in.Vp + c] = v[r * in.Vp + c] - from_start[r] * work[r * in.Vp + c];
    for (int64_t i = 0; i < rows; i += small_gemm::kRows) {
      if (i > 0)
        gemm<T>({.m = small_gemm::kRows,
                 .n = in.Vp,
                 .k = i,
                 .a = m + i * kChunk,
                 .a_row = kChunk,
                 .b = u,
                 .b_row = in.Vp,
                 .c = e + i * in.Vp,
                 .c_row = in.Vp,
                 .alpha = -1,
                 .accumulate = true});
      for (int64_t r = i; r < i + small_gemm::kRows; ++r) {
        T* e_row = e + r * in.Vp;
        for (int64_t s = i; s < r; ++s) {
          const T weight = m[r * kChunk + s];
          const T* u_row = u + s * in.Vp;
          for (int64_t c = 0; c < in.Vp; ++c) e_row[c] -= weight * u_row[c];
        }
        for (int64_t c = 0; c < in.Vp; ++c) u[r * in.Vp + c] = beta[r] * e_row[c];
      }
    }
  }

  // state <- whole * state + w^T (to_end o u); `work` is [C, Vp].                                      (eq.
  // 6)
  void advance(T* state, T* work) const {
    decay(state);
    scale_rows(u, to_end, T(1), rows, in.Vp, work);
    gemm<T>({.m = in.Kp,
             .n = in.Vp,
             .k = rows,
             .a = w,
             .a_row = 1,
             .a_column = in.Kp,
             .b = work,
             .b_row = in.Vp,
             .c = state,
             .c_row = in.Vp,
             .accumulate = true});
  }

  void decay(T* state) const {
    if (in.log_decay)
      for (int64_t i = 0; i < in.Kp * in.Vp; ++i) state[i] *= whole;
  }

 private:
  void load_decay() {
    std::fill_n(from_start, rows, T(1));
    std::fill_n(to_end, rows, T(1));
    if (!in.log_decay) return;
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      if (r < count)
        sum += std::max(static_cast<double>(in.log_decay[(token + r) * in.HV + head]), kSmallestLogDecay);
      sums[static_cast<size_t>(r)] = sum;
    }
    whole = decay_factor<T>(sum);
    for (int64_t r = 0; r < rows; ++r) {
      // Differences in float64 before they are narrowed: never positive, and exact beside a large sum.
      const double g = sums[static_cast<size_t>(r)];
      from_start[r] = decay_factor<T>(g);
      to_end[r] = decay_factor<T>(sum - g);
      for (int64_t s = 0; s <= r; ++s)
        pairs[r * kChunk + s] = decay_factor<T>(g - sums[static_cast<size_t>(s)]);
    }
  }
};

}  // namespace osdn::ops::delta_rule_detail
