// The preconditioner scan token by token in plain ATen, for autograd to differentiate
// (docs/ops/precond_scan.md).
#include <algorithm>
#include <vector>

#include "ops/detail/precond_scan.h"
#include "ops/detail/residual_terms.h"
#include "ops/l2_norm.h"
#include "ops/precond_scan.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace precond_scan_detail {

// Into the box, with gradient 1 inside and 0 outside.
at::Tensor clip(const at::Tensor& x, const PrecondScanOptions& options) {
  const auto bound = [&](double value) { return at::full({}, value, x.options()); };
  const at::Tensor low = bound(options.box_min);
  const at::Tensor high = bound(options.box_max);
  return at::where(x < low, low, at::where(x > high, high, x));
}

}  // namespace precond_scan_detail

PrecondScanOutput precond_scan_ref(const PrecondScanArgs& args) {
  precond_scan_detail::check(args);
  const PrecondScanOptions& options = args.options;
  const ChunkTable& table = args.sequences->chunks(1);
  const at::ScalarType type = accumulation_type(args.k.scalar_type());
  const int64_t HV = args.beta.size(1);
  const int64_t S = args.sequences->num_sequences();
  const bool aware = options.rule == HypergradientRule::kBetaAware;
  const at::Tensor unit = (options.l2_normalize ? l2_norm_ref(args.k) : args.k).to(type);  // [N, H, K]
  const at::Tensor key =
      unit.index_select(0, table.gather).repeat_interleave(HV / unit.size(1), 1);  // [N, HV, K]
  const at::Tensor beta = args.beta.index_select(0, table.gather).unsqueeze(-1);   // [N, HV, 1]
  at::Tensor retention;                                                            // [N, HV, 1 or K]
  if (args.retention.defined()) {
    retention = args.retention.index_select(0, table.gather);
    if (retention.dim() == 2) retention = retention.unsqueeze(-1);
  }
  at::Tensor first = args.carried;  // [S, HV, K]
  if (!first.defined()) {
    const at::Tensor d0 = args.initial_scale.value.to(type);
    first = (options.clamp_initial ? precond_scan_detail::clip(d0, options) : d0).expand({S, -1, -1});
  }
  const auto free_of_gradient = [&](const at::Tensor& x) { return options.detach ? x.detach() : x; };
  at::Tensor live = free_of_gradient(first.index_select(0, args.sequences->order()));  // [n, HV, K]
  std::vector<at::Tensor> ended;
  std::vector<at::Tensor> used = {live.narrow(0, 0, 0)};
  for (size_t t = 0; t + 1 < table.step_begin.size(); ++t) {
    const int64_t begin = table.step_begin[t];
    const int64_t count = table.step_begin[t + 1] - begin;
    if (count < live.size(0)) ended.push_back(live.narrow(0, count, live.size(0) - count));
    const at::Tensor d = live.narrow(0, 0, count);
    const auto row = [&](const at::Tensor& x) { return free_of_gradient(x.narrow(0, begin, count)); };
    const at::Tensor x = row(key).square();                                // (eq. 1)
    const at::Tensor s = (d * x).sum(-1, true);                            // (eq. 1)
    const at::Tensor e = aware ? row(beta) * (1 - row(beta) * s) : 1 - s;  // (eq. 2)
    at::Tensor step = options.step_size * e * x;                           // (eq. 3)
    if (options.divide_by_key_norm) step = step / (x.sum(-1, true) + precond_scan_detail::kKeyNormEps);
    at::Tensor kept = d;
    if (retention.defined()) kept = options.anchored ? 1 + row(retention) * (d - 1) : row(retention) * d;
    used.push_back(d);
    live = precond_scan_detail::clip(kept + step, options);  // (eq. 5)
  }
  ended.push_back(live);
  std::reverse(ended.begin(), ended.end());
  const at::Tensor d = at::cat(used);  // [N, HV, K] in the scan's order
  PrecondScanOutput out;
  out.write_key = (d * key).index_select(0, table.scatter).to(args.k.scalar_type());
  out.read_key = args.k;
  out.final_d = at::cat(ended).index_select(0, args.sequences->inverse_order());
  if (args.collect_statistics) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = key.square();
    out.statistics = residual_terms(beta * (d * x).sum(-1, true), beta * x.sum(-1, true), beta, d,
                                    options.box_min, options.box_max, retention);
  }
  return out;
}

}  // namespace osdn::ops
