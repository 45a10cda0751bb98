// Random problems of the delta rule and their results by name, for its tests.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/delta_rule.h"
#include "tests/support/test.h"

namespace osdn::ops::delta_rule_test {

enum class Decay { kNone, kScalar, kChannel };
enum class Through { kBoth, kOutput, kFinalState };

inline std::string to_string(Decay decay) {
  return decay == Decay::kNone ? "no decay" : decay == Decay::kScalar ? "scalar decay" : "decay per channel";
}

struct Spec {
  std::vector<int64_t> offsets;
  int64_t H, HV, K, V;
  Decay decay = Decay::kNone;
  bool write_key = false;
  bool initial_state = false;
  at::ScalarType dtype = at::kDouble;
  bool decay_in_dtype = false;  // log-decays by channel in `dtype`, not in that of the accumulation
};

/// Leaves that require grad; unit-variance q, k, v, beta in (0, 1), log-decays around -0.3.
inline DeltaRuleArgs make(const Spec& spec) {
  at::manual_seed(17);
  const at::ScalarType wide = spec.dtype == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t N = spec.offsets.back();
  const auto leaf = [](const at::Tensor& x, at::ScalarType type) {
    return x.to(type).detach().set_requires_grad(true);
  };
  const auto normal = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble); };
  DeltaRuleArgs args;
  args.q = leaf(normal({N, spec.H, spec.K}), spec.dtype);
  args.k = leaf(normal({N, spec.H, spec.K}), spec.dtype);
  args.v = leaf(normal({N, spec.HV, spec.V}), spec.dtype);
  args.beta = leaf(normal({N, spec.HV}).sigmoid(), wide);
  if (spec.write_key) {
    // Near the normalised key, as a preconditioned key is: an unrelated write key makes the recurrence grow.
    const at::Tensor unit = args.k.detach().to(at::kDouble);
    const at::Tensor scale = at::rand({N, spec.HV, spec.K}, at::kDouble) * 0.8 + 0.6;
    args.write_key =
        leaf((unit / unit.norm(2, {-1}, true)).repeat_interleave(spec.HV / spec.H, 1) * scale, spec.dtype);
  }
  if (spec.decay == Decay::kScalar) args.log_decay = leaf(-at::rand({N, spec.HV}, at::kDouble) * 0.6, wide);
  if (spec.decay == Decay::kChannel)
    args.log_decay =
        leaf(-at::rand({N, spec.HV, spec.K}, at::kDouble) * 0.6, spec.decay_in_dtype ? spec.dtype : wide);
  if (spec.initial_state)
    args.initial_state =
        leaf(normal({static_cast<int64_t>(spec.offsets.size()) - 1, spec.HV, spec.K, spec.V}), wide);
  args.sequences = Sequences::make(spec.offsets, at::kCPU);
  return args;
}

/// The inputs that require grad, by name.
inline std::vector<std::pair<std::string, at::Tensor>> inputs(const DeltaRuleArgs& args) {
  std::vector<std::pair<std::string, at::Tensor>> list;
  const auto add = [&list](const char* name, const at::Tensor& x) {
    if (x.defined() && x.requires_grad()) list.emplace_back(name, x);
  };
  add("q", args.q);
  add("k", args.k);
  add("v", args.v);
  add("beta", args.beta);
  add("write_key", args.write_key);
  add("log_decay", args.log_decay);
  add("initial_state", args.initial_state);
  return list;
}

inline DeltaRuleArgs mapped(const DeltaRuleArgs& args,
                            const std::function<at::Tensor(const at::Tensor&)>& map) {
  DeltaRuleArgs result = args;
  for (at::Tensor* x : {&result.q, &result.k, &result.v, &result.beta, &result.write_key, &result.log_decay,
                        &result.initial_state})
    if (x->defined()) *x = map(x->detach()).set_requires_grad(x->requires_grad());
  return result;
}

inline DeltaRuleArgs to_double(const DeltaRuleArgs& args) {
  return mapped(args, [](const at::Tensor& x) { return x.to(at::kDouble); });
}

inline DeltaRuleArgs to_device(const DeltaRuleArgs& args, at::Device device) {
  DeltaRuleArgs result = mapped(args, [device](const at::Tensor& x) { return x.to(device); });
  result.sequences = Sequences::make(args.sequences->host_offsets(), device);
  return result;
}

/// One document of a pack on its own; `row` is its initial state's.
inline DeltaRuleArgs only(const DeltaRuleArgs& args, int64_t begin, int64_t length, int64_t row) {
  const at::Tensor state = args.initial_state;
  DeltaRuleArgs tokens = args;
  tokens.initial_state = at::Tensor();
  DeltaRuleArgs result =
      mapped(tokens, [=](const at::Tensor& x) { return x.narrow(0, begin, length).clone(); });
  if (state.defined())
    result.initial_state = state.detach().narrow(0, row, 1).clone().set_requires_grad(true);
  result.sequences = Sequences::equal(1, length, at::kCPU);
  return result;
}

// Fixed weights of a loss, functions of the position alone, so that a document has the same in a pack and
// alone.
inline at::Tensor output_weights(const at::Tensor& o) {
  return at::arange(o[0].numel(), o.options().dtype(at::kDouble))
      .add_(1)
      .sin_()
      .view(o[0].sizes())
      .expand_as(o);
}
inline at::Tensor final_weights(const at::Tensor& state) {
  return at::arange(state[0].numel(), state.options().dtype(at::kDouble))
      .add_(2)
      .cos_()
      .view(state[0].sizes())
      .expand_as(state);
}

inline at::Tensor loss(const DeltaRuleOutput& out, Through through = Through::kBoth) {
  at::Tensor sum;
  if (through != Through::kFinalState && out.o.size(0) > 0)
    sum = (out.o.to(at::kDouble) * output_weights(out.o)).sum();
  if (through != Through::kOutput) {
    const at::Tensor part = (out.final_state.to(at::kDouble) * final_weights(out.final_state)).sum();
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

struct Result {
  at::Tensor o;
  at::Tensor final_state;
  std::map<std::string, at::Tensor> gradients;  // by input; zeros where autograd gives none
};

inline Result run(const std::function<DeltaRuleOutput(const DeltaRuleArgs&)>& op, const DeltaRuleArgs& args,
                  Through through = Through::kBoth) {
  const DeltaRuleOutput out = op(args);
  Result result{.o = out.o.detach(), .final_state = out.final_state.detach(), .gradients = {}};
  std::vector<at::Tensor> leaves;
  for (const auto& [name, x] : inputs(args)) leaves.push_back(x);
  const auto gradients = torch::autograd::grad({loss(out, through)}, leaves, {}, std::nullopt, false, true);
  size_t i = 0;
  for (const auto& [name, x] : inputs(args)) {
    result.gradients[name] = gradients[i].defined() ? gradients[i] : at::zeros_like(x);
    ++i;
  }
  return result;
}

inline void check_equal(const Result& actual, const Result& expected, double tolerance) {
  osdn::test::check_close("o", actual.o, expected.o, tolerance);
  osdn::test::check_close("final_state", actual.final_state, expected.final_state, tolerance);
  REQUIRE(actual.gradients.size() == expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients)
    osdn::test::check_close("d" + name, actual.gradients.at(name), gradient, tolerance);
}

}  // namespace osdn::ops::delta_rule_test
