// Random problems of the preconditioner scan and their results by name, for its tests.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/precond_scan.h"
#include "tests/support/test.h"

namespace osdn::ops::precond_scan_test {

enum class Retention { kNone, kPerHead, kPerChannel };

struct Spec {
  std::vector<int64_t> offsets;
  int64_t H, HV, K;
  Retention retention = Retention::kNone;
  PrecondScanOptions options;
  bool carried = false;
  at::ScalarType dtype = at::kDouble;
};

/// Leaves that require grad. d0 around 1 with values on both sides of the box's bounds; retention in (0.8,
/// 1).
inline PrecondScanArgs make(const Spec& spec) {
  at::manual_seed(29);
  const at::ScalarType wide = spec.dtype == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t N = spec.offsets.back();
  const int64_t S = static_cast<int64_t>(spec.offsets.size()) - 1;
  const auto leaf = [](const at::Tensor& x, at::ScalarType type) {
    return x.to(type).detach().set_requires_grad(true);
  };
  PrecondScanArgs args;
  args.k = leaf(at::randn({N, spec.H, spec.K}, at::kDouble), spec.dtype);
  args.beta = leaf(at::randn({N, spec.HV}, at::kDouble).sigmoid(), wide);
  const auto retention = [](at::IntArrayRef shape) { return 1 - 0.2 * at::rand(shape, at::kDouble); };
  if (spec.retention == Retention::kPerHead) args.retention = leaf(retention({N, spec.HV}), wide);
  if (spec.retention == Retention::kPerChannel) args.retention = leaf(retention({N, spec.HV, spec.K}), wide);
  args.initial_scale.value = leaf(0.5 + at::rand({spec.HV, spec.K}, at::kDouble), wide);
  if (spec.carried) args.carried = leaf(0.7 + 0.7 * at::rand({S, spec.HV, spec.K}, at::kDouble), wide);
  args.sequences = Sequences::make(spec.offsets, at::kCPU);
  args.options = spec.options;
  args.collect_statistics = true;
  return args;
}

inline std::vector<std::pair<std::string, at::Tensor>> inputs(const PrecondScanArgs& args) {
  std::vector<std::pair<std::string, at::Tensor>> list;
  const auto add = [&list](const char* name, const at::Tensor& x) {
    if (x.defined() && x.requires_grad()) list.emplace_back(name, x);
  };
  add("k", args.k);
  add("beta", args.beta);
  add("retention", args.retention);
  add("initial_scale", args.initial_scale.value);
  add("carried", args.carried);
  return list;
}

inline PrecondScanArgs mapped(const PrecondScanArgs& args,
                              const std::function<at::Tensor(const at::Tensor&)>& map) {
  PrecondScanArgs result = args;
  for (at::Tensor* x :
       {&result.k, &result.beta, &result.retention, &result.initial_scale.value, &result.carried})
    if (x->defined()) *x = map(x->detach()).set_requires_grad(x->requires_grad());
  return result;
}

inline PrecondScanArgs to_double(const PrecondScanArgs& args) {
  return mapped(args, [](const at::Tensor& x) { return x.to(at::kDouble); });
}

inline PrecondScanArgs to_device(const PrecondScanArgs& args, at::Device device) {
  PrecondScanArgs result = mapped(args, [device](const at::Tensor& x) { return x.to(device); });
  result.sequences = Sequences::make(args.sequences->host_offsets(), device);
  return result;
}

/// Tokens begin .. begin + length - 1 as one sequence of their own, starting from `carried` [1, HV, K] or d0.
inline PrecondScanArgs only(const PrecondScanArgs& args, int64_t begin, int64_t length,
                            const at::Tensor& carried) {
  PrecondScanArgs result = args;
  const auto part = [=](const at::Tensor& x) {
    return x.defined() ? x.detach().narrow(0, begin, length).clone().set_requires_grad(true) : x;
  };
  result.k = part(args.k);
  result.beta = part(args.beta);
  result.retention = part(args.retention);
  result.carried = carried;
  result.sequences = Sequences::equal(1, length, at::kCPU);
  return result;
}

// Fixed weights of a loss, different for every token and channel.
inline at::Tensor weights_like(const at::Tensor& x, double phase) {
  return at::arange(x.numel(), x.options().dtype(at::kDouble)).add_(phase).sin_().view(x.sizes());
}

inline at::Tensor loss(const PrecondScanOutput& out) {
  return (out.write_key.to(at::kDouble) * weights_like(out.write_key, 1)).sum() +
         (out.final_d.to(at::kDouble) * weights_like(out.final_d, 2)).sum();
}

struct Result {
  at::Tensor write_key;
  at::Tensor final_d;
  at::Tensor statistics;
  std::map<std::string, at::Tensor> gradients;  // by input; zeros where autograd gives none
};

inline Result run(const std::function<PrecondScanOutput(const PrecondScanArgs&)>& op,
                  const PrecondScanArgs& args) {
  const PrecondScanOutput out = op(args);
  Result result{.write_key = out.write_key.detach(),
                .final_d = out.final_d.detach(),
                .statistics = out.statistics,
                .gradients = {}};
  std::vector<at::Tensor> leaves;
  for (const auto& [name, x] : inputs(args)) leaves.push_back(x);
  const auto gradients = torch::autograd::grad({loss(out)}, leaves, {}, std::nullopt, false, true);
  size_t i = 0;
  for (const auto& [name, x] : inputs(args)) {
    result.gradients[name] = gradients[i].defined() ? gradients[i] : at::zeros_like(x);
    ++i;
  }
  return result;
}

inline void check_equal(const Result& actual, const Result& expected, double tolerance) {
  osdn::test::check_close("write_key", actual.write_key, expected.write_key, tolerance);
  osdn::test::check_close("final_d", actual.final_d, expected.final_d, tolerance);
  REQUIRE(actual.gradients.size() == expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients)
    osdn::test::check_close("d" + name, actual.gradients.at(name), gradient, tolerance);
}

}  // namespace osdn::ops::precond_scan_test
