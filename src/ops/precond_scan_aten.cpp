// The preconditioner scan in ATen (docs/ops/precond_scan.md, eq. 1-12), for what the kernels of a device do
// not take: float64, and key sizes beyond theirs. What does not depend on d is computed for all tokens at
// once; the scan goes token by token with all sequences advancing together in the time-major order.
#include "ops/detail/precond_scan.h"
#include "ops/detail/residual_terms.h"
#include "tensor/torch.h"

namespace osdn::ops::precond_scan_detail {
namespace {

// Rows in the scan's order; step t of the scan works on `count(t)` rows from `begin(t)`.
struct InOrder {
  const ChunkTable& table;
  int64_t N, HV, K;
  at::Tensor key;        // [N, HV, K]
  at::Tensor x;          // [N, HV, K] key o key
  at::Tensor beta;       // [N, HV, 1]
  at::Tensor retention;  // [N, HV, 1 or K] or undefined
  at::Tensor norm;       // [N, HV, 1] the denominator; undefined: 1
  bool aware;
  double step_size;

  explicit InOrder(const Problem& p)
      : table(p.sequences->chunks(1)),
        N(p.k.size(0)),
        HV(p.beta.size(1)),
        K(p.k.size(2)),
        aware(p.options.rule == HypergradientRule::kBetaAware),
        step_size(p.options.step_size) {
    key = rows(p.k).repeat_interleave(HV / p.k.size(1), 1);
    x = key.square();
    beta = rows(p.beta).unsqueeze(-1);
    if (p.retention.defined())
      retention = p.channel_retention() ? rows(p.retention) : rows(p.retention).unsqueeze(-1);
    if (p.options.divide_by_key_norm) norm = x.sum(-1, true) + kKeyNormEps;
  }
  at::Tensor rows(const at::Tensor& tensor) const { return tensor.index_select(0, table.gather); }
  at::Tensor tokens(const at::Tensor& tensor) const { return tensor.index_select(0, table.scatter); }
  at::Tensor over_norm(const at::Tensor& tensor) const { return norm.defined() ? tensor / norm : tensor; }
  int64_t steps() const { return static_cast<int64_t>(table.step_begin.size()) - 1; }
  int64_t begin(int64_t t) const { return table.step_begin[static_cast<size_t>(t)]; }
  int64_t count(int64_t t) const { return begin(t + 1) - begin(t); }
  // The scalar step of eq. 3 is gain - feedback * s; both [N, HV, 1].
  at::Tensor gain() const { return over_norm(aware ? beta * step_size : at::full_like(beta, step_size)); }
  at::Tensor feedback() const {
    return over_norm(aware ? beta.square() * step_size : at::full_like(beta, step_size));
  }
};

// <a, b> over the last dimension, into [n, HV, 1].
void dot_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const int64_t pairs = a.size(0) * a.size(1);
  const int64_t K = a.size(2);
  at::Tensor flat = out.view({pairs, 1, 1});
  at::bmm_out(flat, a.view({pairs, 1, K}), b.view({pairs, K, 1}));
}

at::Tensor first_d(const Problem& problem) {  // [S, HV, K] in the order of the sequences
  return problem.initial.dim() == 3 ? problem.initial
                                    : problem.initial.expand({problem.sequences->num_sequences(), -1, -1});
}

// What the scan leaves behind, rows in its order.
struct Scanned {
  at::Tensor d;        // [N, HV, K] used at each token
  at::Tensor inside;   // [N, HV, K] bool, the clip was inactive
  at::Tensor s;        // [N, HV, 1]
  at::Tensor final_d;  // [S, HV, K]
};

Scanned scan(const Problem& problem, const InOrder& in) {
  const PrecondScanOptions& options = problem.options;
  const at::Tensor gain = in.gain();
  const at::Tensor feedback = in.feedback();
  const at::Tensor d = at::empty_like(in.key);         // [N, HV, K]
  const at::Tensor proposed = at::empty_like(in.key);  // [N, HV, K] the next d before the clip
  const at::Tensor s = at::empty_like(in.beta);        // [N, HV, 1]
  const at::Tensor step = at::empty_like(in.beta);     // [N, HV, 1]
  const at::Tensor base = at::empty_like(in.key);      // [N, HV, K] the retained d
  const at::Tensor one = at::ones({}, in.key.options());
  const at::Tensor initial = first_d(problem);  // [S, HV, K]
  if (in.steps() > 0)
    d.narrow(0, 0, in.count(0))
        .copy_(initial.index_select(0, problem.sequences->order()).narrow(0, 0, in.count(0)));
  for (int64_t t = 0; t < in.steps(); ++t) {
    const auto row = [&](const at::Tensor& tensor) { return tensor.narrow(0, in.begin(t), in.count(t)); };
    const at::Tensor now = row(d);
    dot_out(row(s), now, row(in.x));
    at::Tensor step_now = row(step);
    at::addcmul_out(step_now, row(gain), row(feedback), row(s), -1);
    at::Tensor kept = now;
    if (in.retention.defined()) {
      kept = row(base);
      if (options.anchored)
        at::lerp_out(kept, one.expand_as(now), now, row(in.retention).expand_as(now));
      else
        at::mul_out(kept, now, row(in.retention));
    }
    at::Tensor next = row(proposed);
    at::addcmul_out(next, kept, step_now, row(in.x));
    if (t + 1 == in.steps()) break;
    at::Tensor clipped = d.narrow(0, in.begin(t + 1), in.count(t + 1));
    at::clamp_out(clipped, next.narrow(0, 0, in.count(t + 1)), options.box_min, options.box_max);
  }
  at::Tensor final_d = initial.clone();
  if (in.N > 0) {
    const at::Tensor& offsets = problem.sequences->offsets();                           // [S + 1]
    const at::Tensor ends = offsets.slice(0, 1);                                        // [S]
    const at::Tensor last = in.table.scatter.index_select(0, (ends - 1).clamp_min(0));  // [S]
    const at::Tensor empty = (ends == offsets.slice(0, 0, -1)).view({-1, 1, 1});        // [S, 1, 1]
    final_d =
        at::where(empty, initial, proposed.index_select(0, last).clamp(options.box_min, options.box_max));
  }
  return {.d = d,
          .inside = (proposed >= options.box_min) & (proposed <= options.box_max),
          .s = s,
          .final_d = final_d};
}

// What the reverse scan leaves behind, rows in the scan's order.
struct ScannedBack {
  at::Tensor lambda;   // [N, HV, K] gradient of the proposed next d
  at::Tensor along;    // [N, HV, 1] <lambda, x>
  at::Tensor initial;  // [S, HV, K] gradient of the first d
};

ScannedBack scan_back(const Problem& problem, const InOrder& in, const at::Tensor& inside,
                      const at::Tensor& through_write, const at::Tensor& d_final) {
  const at::Tensor feedback = in.feedback();  // [N, HV, 1]
  const at::Tensor open = inside.to(in.key.scalar_type());
  const at::Tensor lambda = at::empty_like(in.key);
  const at::Tensor along = at::empty_like(in.beta);
  const at::Tensor pull = at::empty_like(in.beta);  // [N, HV, 1]
  const at::Tensor running =
      d_final.index_select(0, problem.sequences->order());  // [S, HV, K] in the scan's order
  for (int64_t t = in.steps() - 1; t >= 0; --t) {
    const auto row = [&](const at::Tensor& tensor) { return tensor.narrow(0, in.begin(t), in.count(t)); };
    at::Tensor state = running.narrow(0, 0, in.count(t));
    at::Tensor now = row(lambda);
    at::mul_out(now, state, row(open));
    dot_out(row(along), now, row(in.x));
    at::Tensor pull_now = row(pull);
    at::mul_out(pull_now, row(feedback), row(along));
    at::addcmul_out(state, row(through_write), pull_now, row(in.x), -1);
    if (in.retention.defined())
      state.addcmul_(row(in.retention), now);
    else
      state.add_(now);
  }
  return {.lambda = lambda,
          .along = along,
          .initial = running.index_select(0, problem.sequences->inverse_order())};
}

}  // namespace

Forward forward_aten(const Problem& problem, bool keep, bool collect_statistics) {
  const InOrder in(problem);
  const PrecondScanOptions& options = problem.options;
  const Scanned scanned = scan(problem, in);
  Forward out;
  out.write_key = in.tokens(scanned.d * in.key);
  out.final_d = scanned.final_d;
  if (keep) out.kept = {scanned.d, scanned.inside};
  if (collect_statistics) {
    const at::Tensor strength = in.beta * scanned.s;        // [N, HV, 1]
    const at::Tensor plain = in.beta * in.x.sum(-1, true);  // [N, HV, 1]
    out.statistics =
        residual_terms(strength, plain, in.beta, scanned.d, options.box_min, options.box_max, in.retention);
  }
  return out;
}

Gradients backward_aten(const Problem& problem, const std::vector<at::Tensor>& kept,
                        const at::Tensor& d_write_key, const at::Tensor& d_final) {
  const InOrder in(problem);
  const PrecondScanOptions& options = problem.options;
  const at::Tensor& d = kept[0];  // [N, HV, K]
  const at::Tensor up =
      d_write_key.defined() ? in.rows(d_write_key.to(in.key.scalar_type())) : at::zeros_like(d);
  const int64_t H = problem.k.size(1);
  const auto per_key_head = [&](const at::Tensor& rows) {
    return in.tokens(rows).view({in.N, H, in.HV / H, in.K}).sum(2);
  };
  Gradients grads;
  at::Tensor d_key = d * up;  // [N, HV, K]
  if (options.detach) {
    grads.k = per_key_head(d_key);
    return grads;
  }
  const at::Tensor through_write = in.key * up;  // [N, HV, K]
  const at::Tensor last =                        // [S, HV, K]
      d_final.defined() ? d_final.to(d.scalar_type())
                        : at::zeros({problem.sequences->num_sequences(), in.HV, in.K}, d.options());
  const ScannedBack back = scan_back(problem, in, kept[1], through_write, last);
  const at::Tensor& lambda = back.lambda;
  const at::Tensor& along = back.along;
  const at::Tensor s = (d * in.x).sum(-1, true);                           // [N, HV, 1]
  const at::Tensor a = in.aware ? 1 - in.beta * s : 1 - s;                 // [N, HV, 1]
  at::Tensor d_x = a * lambda - (in.aware ? in.beta * along : along) * d;  // [N, HV, K]
  if (in.norm.defined()) d_x = d_x - a * along / in.norm;
  d_key = d_key + 2 * in.key * (in.gain() * d_x);
  grads.k = per_key_head(d_key);
  grads.beta = at::zeros_like(problem.beta);
  if (in.aware)
    grads.beta = in.tokens((in.over_norm((1 - 2 * in.beta * s) * along) * options.step_size).squeeze(-1));
  if (in.retention.defined()) {
    const at::Tensor per_channel = lambda * (options.anchored ? d - 1 : d);
    grads.retention = problem.channel_retention() ? in.tokens(per_channel) : in.tokens(per_channel.sum(-1));
  }
  grads.initial = back.initial;
  return grads;
}

}  // namespace osdn::ops::precond_scan_detail
