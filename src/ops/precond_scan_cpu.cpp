// The preconditioner scan on the CPU: one task per sequence and value head (backward: key head), forward and
// backward by hand (docs/ops/precond_scan.md, eq. 1-12). The bits do not depend on the number of threads.
#include <algorithm>
#include <limits>
#include <vector>

#include "ops/detail/precond_scan.h"
#include "ops/detail/residual_terms.h"
#include "ops/detail/simd_math.h"
#include "tensor/torch.h"

namespace osdn::ops::precond_scan_detail {
namespace {

// d is kept at the first token of every block; backward repeats the scan inside a block.
constexpr int64_t kBlock = 64;

// Plain pointers and sizes of a problem.
template <typename T>
struct View {
  const T* k;          // [N, H, K]
  const T* beta;       // [N, HV]
  const T* retention;  // [N, HV, R] or null
  const T* initial;    // [HV, K] or [S, HV, K]
  int64_t S, H, HV, K;
  int64_t R;               // 1 or K
  int64_t initial_stride;  // of a sequence in `initial`: 0 when shared
  T step_size, box_min, box_max;
  bool aware, anchored, divide;
  const std::vector<int64_t>* offsets;  // [S + 1]
  std::vector<int64_t> block_begin;     // [S + 1] blocks before each sequence

  explicit View(const Problem& p)
      : k(p.k.const_data_ptr<T>()),
        beta(p.beta.const_data_ptr<T>()),
        retention(p.retention.defined() ? p.retention.const_data_ptr<T>() : nullptr),
        initial(p.initial.const_data_ptr<T>()),
        S(p.sequences->num_sequences()),
        H(p.k.size(1)),
        HV(p.beta.size(1)),
        K(p.k.size(2)),
        R(p.channel_retention() ? K : 1),
        initial_stride(p.initial.dim() == 3 ? HV * K : 0),
        step_size(static_cast<T>(p.options.step_size)),
        box_min(static_cast<T>(p.options.box_min)),
        box_max(static_cast<T>(p.options.box_max)),
        aware(p.options.rule == HypergradientRule::kBetaAware),
        anchored(p.options.anchored),
        divide(p.options.divide_by_key_norm),
        offsets(&p.sequences->host_offsets()) {
    block_begin.push_back(0);
    for (int64_t s = 0; s < S; ++s)
      block_begin.push_back(block_begin.back() + (length(s) + kBlock - 1) / kBlock);
  }
  int64_t begin(int64_t s) const { return (*offsets)[static_cast<size_t>(s)]; }
  int64_t length(int64_t s) const { return begin(s + 1) - begin(s); }
  const T* key(int64_t token, int64_t head) const { return k + (token * H + head / (HV / H)) * K; }
  const T* retain(int64_t token, int64_t head) const {
    return retention ? retention + (token * HV + head) * R : nullptr;
  }
};

// One block of the scan as it happened.
template <typename T>
struct Trace {
  std::vector<T> d;         // [kBlock + 1, K] d used at each token; the last row in use is d after the block
  std::vector<T> proposed;  // [kBlock, K] the next d before the clip
  std::vector<T> s;         // [kBlock] <d, k^2>
  std::vector<T> norm;      // [kBlock] <1, k^2>

  explicit Trace(int64_t K)
      : d(static_cast<size_t>((kBlock + 1) * K)),
        proposed(static_cast<size_t>(kBlock * K)),
        s(kBlock),
        norm(kBlock) {}
};

// Runs tokens [token, token + count) of one head from trace.d row 0. The only place where d advances, so that
// backward repeats the bits of forward. (eq. 1-5)
template <typename T>
[[gnu::noinline]] void scan_block(const View<T>& in, int64_t token, int64_t count, int64_t head,
                                  Trace<T>& trace) {
  const int64_t K = in.K;
  for (int64_t t = 0; t < count; ++t) {
    const T* key = in.key(token + t, head);
    const T* d = trace.d.data() + t * K;
    T* proposed = trace.proposed.data() + t * K;
    T* next = trace.d.data() + (t + 1) * K;
    const T s = simd::sum<T>(K, [=](int64_t i) { return d[i] * (key[i] * key[i]); });
    const T norm = simd::sum<T>(K, [=](int64_t i) { return key[i] * key[i]; });
    const T beta = in.beta[(token + t) * in.HV + head];
    const T e = in.aware ? beta * (T(1) - beta * s) : T(1) - s;
    const T step = in.step_size * e / (in.divide ? norm + static_cast<T>(kKeyNormEps) : T(1));
    const T* r = in.retain(token + t, head);
    if (!r)
      for (int64_t i = 0; i < K; ++i) proposed[i] = d[i] + step * (key[i] * key[i]);
    else if (in.R == 1 && !in.anchored)
      for (int64_t i = 0; i < K; ++i) proposed[i] = r[0] * d[i] + step * (key[i] * key[i]);
    else
      for (int64_t i = 0; i < K; ++i) {
        const T ri = r[in.R == 1 ? 0 : i];
        const T kept = in.anchored ? T(1) + ri * (d[i] - T(1)) : ri * d[i];
        proposed[i] = kept + step * (key[i] * key[i]);
      }
    for (int64_t i = 0; i < K; ++i) next[i] = std::min(std::max(proposed[i], in.box_min), in.box_max);
    trace.s[static_cast<size_t>(t)] = s;
    trace.norm[static_cast<size_t>(t)] = norm;
  }
}

template <typename T>
void collect(const View<T>& in, int64_t token, int64_t count, int64_t head, const Trace<T>& trace,
             ResidualTerms& terms) {
  const int64_t K = in.K;
  for (int64_t t = 0; t < count; ++t) {
    const T beta = in.beta[(token + t) * in.HV + head];
    terms.add_write(beta * trace.s[static_cast<size_t>(t)], beta * trace.norm[static_cast<size_t>(t)], beta);
    const T* d = trace.d.data() + t * K;
    T smallest = std::numeric_limits<T>::infinity();
    T largest = -smallest;
    T at_box = 0;
    for (int64_t i = 0; i < K; ++i) {
      smallest = std::min(smallest, d[i]);
      largest = std::max(largest, d[i]);
      at_box += d[i] == in.box_min || d[i] == in.box_max ? T(1) : T(0);
    }
    terms.add_scale(static_cast<double>(K), simd::sum<T>(K, [d](int64_t i) { return d[i]; }), smallest,
                    largest, at_box);
    const T* r = in.retain(token + t, head);
    if (r)
      terms.add_retention(static_cast<double>(in.R), simd::sum<T>(in.R, [r](int64_t i) { return r[i]; }));
  }
}

template <typename T>
Forward forward_typed(const Problem& problem, bool keep, bool collect_statistics) {
  const View<T> in(problem);
  const int64_t K = in.K;
  const auto options = problem.k.options();
  Forward out;
  out.write_key = at::empty({problem.k.size(0), in.HV, K}, options);
  out.final_d = at::empty({in.S, in.HV, K}, options);
  const at::Tensor starts =
      at::empty({keep ? in.block_begin.back() : 0, in.HV, K}, options);  // d at block starts
  T* write_key = out.write_key.mutable_data_ptr<T>();
  T* final_d = out.final_d.mutable_data_ptr<T>();
  T* kept = starts.mutable_data_ptr<T>();
  std::vector<ResidualTerms> parts(static_cast<size_t>(collect_statistics ? in.S * in.HV : 0));
  at::parallel_for(0, in.S * in.HV, 1, [&](int64_t first, int64_t last) {
    Trace<T> trace(K);
    for (int64_t task = first; task < last; ++task) {
      const int64_t sequence = task / in.HV;
      const int64_t head = task % in.HV;
      const int64_t length = in.length(sequence);
      const T* initial = in.initial + sequence * in.initial_stride + head * K;
      std::copy(initial, initial + K, trace.d.begin());
      for (int64_t done = 0; done < length; done += kBlock) {
        const int64_t token = in.begin(sequence) + done;
        const int64_t count = std::min(kBlock, length - done);
        const int64_t block = in.block_begin[static_cast<size_t>(sequence)] + done / kBlock;
        if (keep) std::copy_n(trace.d.begin(), K, kept + (block * in.HV + head) * K);
        scan_block(in, token, count, head, trace);
        for (int64_t t = 0; t < count; ++t) {
          const T* key = in.key(token + t, head);
          const T* d = trace.d.data() + t * K;
          T* to = write_key + ((token + t) * in.HV + head) * K;
          for (int64_t i = 0; i < K; ++i) to[i] = d[i] * key[i];
        }
        if (collect_statistics) collect(in, token, count, head, trace, parts[static_cast<size_t>(task)]);
        std::copy_n(trace.d.begin() + count * K, K, trace.d.begin());
      }
      std::copy_n(trace.d.begin(), K, final_d + task * K);
    }
  });
  if (keep) out.kept = {starts};
  if (collect_statistics) {
    ResidualTerms all;
    for (const ResidualTerms& part : parts) all.merge(part);
    out.statistics = all.to_tensor();
  }
  return out;
}

template <typename T>
struct Adjoint {
  const T* d_write_key;  // [N, HV, K] or null
  T* d_k;                // [N, H, K]; this head's part is added
  T* d_beta;             // [N, HV]
  T* d_retention;        // [N, HV, R] or null
  T* lambda;             // [K] gradient of the d after the token, then before it
};

// One token backwards.                                                                            (eq. 6-12)
template <typename T>
void token_backward(const View<T>& in, int64_t token, int64_t head, const Trace<T>& trace, int64_t t,
                    const Adjoint<T>& out) {
  const int64_t K = in.K;
  const T* key = in.key(token, head);
  const T* d = trace.d.data() + t * K;
  const T* proposed = trace.proposed.data() + t * K;
  T* lambda = out.lambda;
  const T beta = in.beta[token * in.HV + head];
  const T s = trace.s[static_cast<size_t>(t)];
  const T n = in.divide ? trace.norm[static_cast<size_t>(t)] + static_cast<T>(kKeyNormEps) : T(1);
  for (int64_t i = 0; i < K; ++i)
    lambda[i] = proposed[i] >= in.box_min && proposed[i] <= in.box_max ? lambda[i] : T(0);
  const T along = simd::sum<T>(K, [=](int64_t i) { return lambda[i] * (key[i] * key[i]); });
  const T a = in.aware ? T(1) - beta * s : T(1) - s;
  const T rate = in.aware ? in.step_size * beta / n : in.step_size / n;
  const T feedback = in.aware ? beta * along : along;
  const T through_norm = in.divide ? a * along / n : T(0);
  out.d_beta[token * in.HV + head] = in.aware ? in.step_size / n * (T(1) - T(2) * beta * s) * along : T(0);
  const T* r = in.retain(token, head);
  if (r) {
    T* d_r = out.d_retention + (token * in.HV + head) * in.R;
    const T origin = in.anchored ? T(1) : T(0);
    if (in.R == 1)
      d_r[0] = simd::sum<T>(K, [=](int64_t i) { return lambda[i] * (d[i] - origin); });
    else
      for (int64_t i = 0; i < K; ++i) d_r[i] = lambda[i] * (d[i] - origin);
  }
  T* d_k = out.d_k + (token * in.H + head / (in.HV / in.H)) * K;
  for (int64_t i = 0; i < K; ++i)
    d_k[i] += T(2) * key[i] * (rate * (a * lambda[i] - feedback * d[i] - through_norm));
  const T pull = rate * feedback;
  if (!r)
    for (int64_t i = 0; i < K; ++i) lambda[i] -= pull * (key[i] * key[i]);
  else
    for (int64_t i = 0; i < K; ++i) lambda[i] = r[in.R == 1 ? 0 : i] * lambda[i] - pull * (key[i] * key[i]);
  if (!out.d_write_key) return;
  const T* up = out.d_write_key + (token * in.HV + head) * K;
  for (int64_t i = 0; i < K; ++i) {
    d_k[i] += d[i] * up[i];
    lambda[i] += key[i] * up[i];
  }
}

template <typename T>
Gradients backward_typed(const Problem& problem, const at::Tensor& starts, const at::Tensor& d_write_key,
                         const at::Tensor& d_final) {
  const View<T> in(problem);
  const int64_t K = in.K;
  const bool detach = problem.options.detach;
  const auto options = problem.k.options();
  const at::Tensor up =
      d_write_key.defined() ? d_write_key.to(options).contiguous() : at::Tensor();             // [N, HV, K]
  const at::Tensor end = d_final.defined() ? d_final.to(options).contiguous() : at::Tensor();  // [S, HV, K]
  Gradients grads;
  grads.k = at::zeros_like(problem.k);
  if (!detach) {
    grads.beta = at::empty_like(problem.beta);
    grads.initial = at::empty({in.S, in.HV, K}, options);
    if (problem.retention.defined()) grads.retention = at::empty_like(problem.retention);
  }
  const T* kept = starts.const_data_ptr<T>();
  const T* up_data = up.defined() ? up.const_data_ptr<T>() : nullptr;
  const T* end_data = end.defined() ? end.const_data_ptr<T>() : nullptr;
  T* d_initial = detach ? nullptr : grads.initial.mutable_data_ptr<T>();
  const int64_t group = in.HV / in.H;
  at::parallel_for(0, in.S * in.H, 1, [&](int64_t first, int64_t last) {
    Trace<T> trace(K);
    std::vector<T> lambda(static_cast<size_t>(K));
    const Adjoint<T> out{
        .d_write_key = up_data,
        .d_k = grads.k.template mutable_data_ptr<T>(),
        .d_beta = detach ? nullptr : grads.beta.template mutable_data_ptr<T>(),
        .d_retention = grads.retention.defined() ? grads.retention.template mutable_data_ptr<T>() : nullptr,
        .lambda = lambda.data()};
    for (int64_t task = first * group; task < last * group; ++task) {
      const int64_t sequence = task / in.HV;
      const int64_t head = task % in.HV;
      if (end_data)
        std::copy_n(end_data + task * K, K, lambda.begin());
      else
        std::fill(lambda.begin(), lambda.end(), T(0));
      const int64_t blocks = (in.length(sequence) + kBlock - 1) / kBlock;
      for (int64_t block = blocks - 1; block >= 0; --block) {
        const int64_t token = in.begin(sequence) + block * kBlock;
        const int64_t count = std::min(kBlock, in.length(sequence) - block * kBlock);
        const T* start = kept + ((in.block_begin[static_cast<size_t>(sequence)] + block) * in.HV + head) * K;
        std::copy_n(start, K, trace.d.begin());
        scan_block(in, token, count, head, trace);
        for (int64_t t = count - 1; t >= 0; --t) {
          if (!detach) {
            token_backward(in, token + t, head, trace, t, out);
          } else if (up_data) {
            const T* from = up_data + ((token + t) * in.HV + head) * K;
            const T* d = trace.d.data() + t * K;
            T* d_k = out.d_k + ((token + t) * in.H + head / group) * K;
            for (int64_t i = 0; i < K; ++i) d_k[i] += d[i] * from[i];
          }
        }
      }
      if (!detach) std::copy_n(lambda.begin(), K, d_initial + task * K);
    }
  });
  return grads;
}

}  // namespace

Forward forward_cpu(const Problem& problem, bool keep, bool collect_statistics) {
  return problem.k.scalar_type() == at::kDouble ? forward_typed<double>(problem, keep, collect_statistics)
                                                : forward_typed<float>(problem, keep, collect_statistics);
}

Gradients backward_cpu(const Problem& problem, const std::vector<at::Tensor>& kept,
                       const at::Tensor& d_write_key, const at::Tensor& d_final) {
  return problem.k.scalar_type() == at::kDouble
             ? backward_typed<double>(problem, kept.front(), d_write_key, d_final)
             : backward_typed<float>(problem, kept.front(), d_write_key, d_final);
}

}  // namespace osdn::ops::precond_scan_detail
