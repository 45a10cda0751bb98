// The delta rule at the quickstart's shape on the CPU and at the 340M model's on a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ops/delta_rule.h"
#include "ops/precond_scan.h"
#include "tensor/torch.h"
#include "tests/bench/bench.h"

namespace osdn::bench {
namespace {

enum class DeltaRuleDecay { kNone, kScalar, kChannel };

struct DeltaRuleShape {
  int64_t B, T, H, K, V;
};

ops::DeltaRuleArgs delta_rule_args(const DeltaRuleShape& shape, DeltaRuleDecay decay, bool write_key,
                                   at::ScalarType dtype, at::Device device) {
  const int64_t N = shape.B * shape.T;
  const auto leaf = [](const at::Tensor& x) { return x.detach().set_requires_grad(true); };
  ops::DeltaRuleArgs args;
  args.q = leaf(random({N, shape.H, shape.K}, dtype, device, 1));
  args.k = leaf(random({N, shape.H, shape.K}, dtype, device, 2));
  args.v = leaf(random({N, shape.H, shape.V}, dtype, device, 3));
  args.beta = leaf(random({N, shape.H}, at::kFloat, device, 4).sigmoid());
  if (write_key) {
    const at::Tensor unit = args.k.detach().to(at::kFloat);
    args.write_key = leaf((unit / unit.norm(2, {-1}, true)).to(dtype));
  }
  if (decay == DeltaRuleDecay::kScalar)
    args.log_decay = leaf(-0.1 * random({N, shape.H}, at::kFloat, device, 5).abs());
  if (decay == DeltaRuleDecay::kChannel)
    args.log_decay = leaf(-0.1 * random({N, shape.H, shape.K}, at::kFloat, device, 5).abs());
  args.sequences = ops::Sequences::equal(shape.B, shape.T, device);
  return args;
}

// Error of output and of dq, dk, dv, dbeta on one sequence against the float64 chunk form.
double delta_rule_error(const ops::DeltaRuleArgs& args, int64_t length) {
  const auto part = [length](const at::Tensor& x, bool wide) {
    if (!x.defined()) return at::Tensor();
    const at::Tensor rows = x.detach().narrow(0, 0, length);
    return (wide ? rows.to(at::kDouble) : rows.clone()).set_requires_grad(true);
  };
  std::vector<at::Tensor> found[2];
  for (const bool wide : {false, true}) {
    ops::DeltaRuleArgs one{.q = part(args.q, wide),
                           .k = part(args.k, wide),
                           .v = part(args.v, wide),
                           .beta = part(args.beta, wide),
                           .write_key = part(args.write_key, wide),
                           .log_decay = part(args.log_decay, wide),
                           .initial_state = at::Tensor(),
                           .sequences = ops::Sequences::equal(1, length, args.q.device())};
    const at::Tensor o = wide ? ops::delta_rule_chunked(one).o : ops::delta_rule(one).o;
    found[wide] = torch::autograd::grad({o.to(at::kDouble).square().sum()}, {one.q, one.k, one.v, one.beta});
    found[wide].push_back(o);
  }
  double worst = 0;
  for (size_t i = 0; i < found[0].size(); ++i)
    worst = std::max(worst, relative_error(found[0][i], found[1][i]));
  return worst;
}

// The op with the OSDN scan that makes its write key (box 2/3 .. 3/2, step size 1), as a layer runs them.
std::vector<Case> with_scan(const Case& plain_forward, const ops::DeltaRuleArgs& args,
                            const at::Tensor& upstream) {
  ops::PrecondScanArgs scan{.k = args.k, .beta = args.beta, .sequences = args.sequences};
  scan.initial_scale.value =
      at::ones({args.v.size(1), args.k.size(2)}, args.beta.options().requires_grad(false))
          .set_requires_grad(true);
  const auto run = [args, scan] {
    ops::DeltaRuleArgs preconditioned = args;
    preconditioned.write_key = ops::precond_scan(scan).write_key;
    return ops::delta_rule(preconditioned).o;
  };
  Case forward = plain_forward;
  forward.shape += " OSDN scan";
  forward.error = [] { return 0.0; };  // of its two parts, which have cases of their own
  forward.run = [run] {
    const at::NoGradGuard no_grad;
    run();
  };
  Case both = forward;
  both.pass = "forward+backward";
  both.bytes *= 3;
  both.flop *= 3;
  both.run = [run, args, scan, upstream] {
    torch::autograd::grad({run()}, {args.q, args.k, args.v, args.beta, scan.initial_scale.value}, {upstream});
  };
  return {forward, both};
}

std::vector<Case> delta_rule_cases(at::Device device) {
  const bool on_device = device.is_cuda();
  const DeltaRuleShape shape = on_device ? DeltaRuleShape{.B = 16, .T = 2048, .H = 8, .K = 128, .V = 128}
                                         : DeltaRuleShape{.B = 8, .T = 256, .H = 3, .K = 64, .V = 64};
  const at::ScalarType dtype = on_device ? at::kBFloat16 : at::kFloat;
  std::vector<Case> cases;
  for (const DeltaRuleDecay decay :
       {DeltaRuleDecay::kNone, DeltaRuleDecay::kScalar, DeltaRuleDecay::kChannel})
    for (const bool write_key : {false, true}) {
      const ops::DeltaRuleArgs args = delta_rule_args(shape, decay, write_key, dtype, device);
      const at::Tensor upstream = at::ones_like(args.v.detach());
      const double heads = static_cast<double>(shape.B * shape.T * shape.H);
      const double K = static_cast<double>(shape.K);
      const double V = static_cast<double>(shape.V);
      const double element = static_cast<double>(at::elementSize(dtype));
      // The chunk form with chunks of 64 (docs/ops/delta_rule.md, cost).
      const double forward_flop = heads * (6 * K * V + 64 * (6 * K + 4 * V));
      Case forward{
          .shape = fmt::format("B{} T{} H{} K{} V{}{}{}", shape.B, shape.T, shape.H, shape.K, shape.V,
                               decay == DeltaRuleDecay::kNone     ? ""
                               : decay == DeltaRuleDecay::kScalar ? " scalar decay"
                                                                  : " channel decay",
                               write_key ? " write key" : ""),
          .pass = "forward",
          .dtype = dtype,
          .device = device,
          .bytes = heads * element * (2 * K + 2 * V + (write_key ? K : 0)),
          .flop = forward_flop,
          .error = [args, length = shape.T] { return delta_rule_error(args, length); },
          .tolerance = dtype == at::kFloat ? 1e-4 : 1e-2,
          .run =
              [args] {
                const at::NoGradGuard no_grad;
                ops::delta_rule(args);
              }};
      Case both = forward;
      both.pass = "forward+backward";
      both.bytes *= 3;
      both.flop *= 3;
      both.run = [args, upstream] {
        std::vector<at::Tensor> leaves = {args.q, args.k, args.v, args.beta};
        if (args.write_key.defined()) leaves.push_back(args.write_key);
        if (args.log_decay.defined()) leaves.push_back(args.log_decay);
        torch::autograd::grad({ops::delta_rule(args).o}, leaves, {upstream});
      };
      cases.push_back(forward);
      cases.push_back(both);
      if (decay == DeltaRuleDecay::kNone && !write_key)
        for (Case& one : with_scan(forward, args, upstream)) cases.push_back(std::move(one));
    }
  return cases;
}

const Registrar kDeltaRuleBench("delta_rule", delta_rule_cases);

}  // namespace
}  // namespace osdn::bench
