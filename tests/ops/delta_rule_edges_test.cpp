// The delta rule at its edges: extreme decays, zero keys, saturated beta, causality, long sequences, wrong
// arguments.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/delta_rule.h"
#include "tests/ops/delta_rule_cases.h"
#include "tests/support/test.h"

namespace osdn::ops::delta_rule_edges_test {

using delta_rule_test::check_equal;
using delta_rule_test::Decay;
using delta_rule_test::loss;
using delta_rule_test::make;
using delta_rule_test::only;
using delta_rule_test::Result;
using delta_rule_test::run;
using delta_rule_test::to_double;
using osdn::test::check_close;

TEST_CASE("tiny decay factors stay finite and exact, forward and backward", "[delta_rule_edges]") {
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  const int pattern = GENERATE(0, 1, 2, 3);
  CAPTURE(to_string(decay), pattern);
  DeltaRuleArgs args =
      make({.offsets = {0, 64}, .H = 1, .HV = 1, .K = 64, .V = 64, .decay = decay, .dtype = at::kFloat});
  at::Tensor log_decay = at::full_like(args.log_decay, -0.01).detach();
  if (pattern == 0) log_decay.fill_(std::log(1e-12));
  if (pattern == 1) log_decay.narrow(0, 20, 21).fill_(std::log(1e-12));
  if (pattern == 2) log_decay.masked_fill_(at::rand_like(log_decay) < 0.3, -1000);
  if (pattern == 3) log_decay.narrow(0, 30, 3).fill_(-std::numeric_limits<double>::infinity());
  args.log_decay = log_decay.set_requires_grad(true);
  args.beta = at::full_like(args.beta, 0.5).detach().set_requires_grad(true);
  const DeltaRuleArgs exact = to_double(args);
  // 1e-3 is what a user may expect of float32 here; a lost small difference beside exponents of -1000 shows
  // as 1e-2.
  check_equal(run(delta_rule, args), run(delta_rule_ref, exact), 1e-3);
}

TEST_CASE("an absent decay, a decay of zero and the plain recurrence agree", "[delta_rule_edges]") {
  const DeltaRuleArgs none = make(
      {.offsets = {0, 100}, .H = 1, .HV = 1, .K = 64, .V = 64, .initial_state = true, .dtype = at::kFloat});
  const Result truth = run(delta_rule_ref, to_double(none));
  const Result absent = run(delta_rule, none);
  // Float32 sums over 64 channels and 100 tokens.
  check_equal(absent, truth, 1e-5);
  for (const int64_t channels : {1, 64}) {
    DeltaRuleArgs zero = none;
    zero.log_decay = channels == 1 ? at::zeros({100, 1}) : at::zeros({100, 1, channels});
    const Result result = run(delta_rule, zero);
    check_close("o", result.o, absent.o, 1e-5);
    check_close("final_state", result.final_state, absent.final_state, 1e-5);
    for (const auto& [name, gradient] : absent.gradients)
      check_close("d" + name, result.gradients.at(name), gradient, 1e-5);
  }
}

TEST_CASE("the decay's gradient at a sequence's first token is exactly zero from a zero state",
          "[delta_rule_edges]") {
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  DeltaRuleArgs args = make({.offsets = {0, 192, 200, 201},
                             .H = 2,
                             .HV = 2,
                             .K = 16,
                             .V = 16,
                             .decay = decay,
                             .dtype = at::kFloat});
  const Result without = run(delta_rule, args);
  check_close("dlog_decay", without.gradients.at("log_decay"),
              run(delta_rule_ref, to_double(args)).gradients.at("log_decay"), 1e-5);
  args.initial_state = at::zeros({3, 2, 16, 16});
  const Result with_zeros = run(delta_rule, args);
  for (const int64_t first : {0, 192, 200}) {
    CHECK(without.gradients.at("log_decay")[first].abs().max().item<double>() == 0);
    CHECK(with_zeros.gradients.at("log_decay")[first].abs().max().item<double>() == 0);
  }
  CHECK(at::equal(without.gradients.at("log_decay"), with_zeros.gradients.at("log_decay")));
}

TEST_CASE("the state decays before the error is measured", "[delta_rule_edges]") {
  const auto one = [](std::vector<double> values) { return at::tensor(values, at::kDouble).view({2, 1, 1}); };
  const DeltaRuleArgs args{.q = one({1, 1}),
                           .k = one({1, 1}),
                           .v = one({1, 1}),
                           .beta = one({1, 1}).view({2, 1}),
                           .log_decay = one({0, std::log(0.5)}).view({2, 1}),
                           .sequences = Sequences::equal(1, 2, at::kCPU),
                           .scale = 1.0,
                           .l2_normalize = false};
  for (const at::Tensor& o : {delta_rule(args).o, delta_rule_ref(args).o, delta_rule_chunked(args, 2).o,
                              delta_rule_chunked(args, 1).o})
    check_close("o", o.flatten(), at::ones({2}, at::kDouble), 1e-14);
}

TEST_CASE("zero and denormal queries and keys have finite values and gradients", "[delta_rule_edges]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const bool only_zeros = GENERATE(false, true);
  DeltaRuleArgs args =
      make({.offsets = {0, 20, 40}, .H = 1, .HV = 1, .K = 8, .V = 8, .decay = decay, .dtype = at::kFloat});
  at::Tensor q = args.q.detach().clone();
  at::Tensor k = args.k.detach().clone();
  q.narrow(0, only_zeros ? 0 : 7, only_zeros ? 40 : 1).zero_();
  k.narrow(0, only_zeros ? 0 : 7, only_zeros ? 40 : 1).zero_();
  if (!only_zeros) {
    k[9].zero_();
    k[9][0][3] = 1e-40;
  }
  args.q = q.set_requires_grad(true);
  args.k = k.set_requires_grad(true);
  const Result result = run(delta_rule, args);
  CHECK(at::isfinite(result.o).all().item<bool>());
  CHECK(at::isfinite(result.final_state).all().item<bool>());
  for (const auto& [name, gradient] : result.gradients) {
    INFO(name);
    CHECK(at::isfinite(gradient).all().item<bool>());
  }
}

TEST_CASE("beta of 0 leaves the decayed state, beta of 1 stores the value, beta of 2 reflects",
          "[delta_rule_edges]") {
  DeltaRuleArgs args = make(
      {.offsets = {0, 1}, .H = 1, .HV = 1, .K = 8, .V = 4, .decay = Decay::kScalar, .initial_state = true});
  const at::NoGradGuard no_grad;
  args.l2_normalize = false;
  args.k = args.k / args.k.norm();
  args.q = args.k;
  args.scale = 1.0;
  const at::Tensor decayed = args.initial_state * args.log_decay.exp().view({1, 1, 1, 1});
  args.beta = at::zeros_like(args.beta);
  check_close("state with beta 0", delta_rule(args).final_state, decayed, 1e-15);
  args.beta = at::ones_like(args.beta);
  check_close("value read back with beta 1", delta_rule(args).o, args.v, 1e-14);
  args.beta = at::full_like(args.beta, 2);
  args.v = at::zeros_like(args.v);
  const at::Tensor reflected = delta_rule(args).final_state;
  CHECK(reflected.norm().item<double>() == Approx(decayed.norm().item<double>()));
  const auto read = [&](const at::Tensor& state) {
    return at::matmul(args.k.view({1, 8}), state.view({8, 4}));
  };
  check_close("reading after reflection", read(reflected), -read(decayed), 1e-14);
}

TEST_CASE("saturated beta logits have finite gradients", "[delta_rule_edges]") {
  const at::Tensor logits =
      at::tensor({-100.f, -20.f, 0.f, 20.f, 100.f}).view({5, 1}).set_requires_grad(true);
  DeltaRuleArgs args = make({.offsets = {0, 5}, .H = 1, .HV = 1, .K = 8, .V = 8, .dtype = at::kFloat});
  args.beta = logits.sigmoid();
  const at::Tensor gradient = torch::autograd::grad({loss(delta_rule(args))}, {logits})[0];
  CHECK(at::isfinite(gradient).all().item<bool>());
  CHECK(gradient[0].item<double>() == Approx(0).margin(1e-30));
  CHECK(gradient[4].item<double>() == 0);
}

TEST_CASE("logits of beta at their extremes give finite gradients, zero where the sigmoid is saturated",
          "[delta_rule_edges]") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(c10::toString(dtype));
  DeltaRuleArgs args =
      make({.offsets = {0, 5}, .H = 1, .HV = 1, .K = 8, .V = 4, .initial_state = true, .dtype = at::kFloat});
  const at::Tensor logits =
      at::tensor({-100.0, -20.0, 0.0, 20.0, 100.0}).view({5, 1}).to(dtype).set_requires_grad(true);
  args.beta = at::sigmoid(logits).to(at::kFloat);
  const DeltaRuleOutput out = delta_rule(args);
  CHECK(at::isfinite(out.o).all().item<bool>());
  const at::Tensor gradient = torch::autograd::grad({loss(out)}, {logits})[0].flatten();
  CHECK(at::isfinite(gradient).all().item<bool>());
  CHECK(gradient[0].abs().item<double>() < 1e-30);
  CHECK(gradient[2].item<double>() != 0);
  CHECK(gradient[4].item<double>() == 0);
}

TEST_CASE("keys far from unit length are normalised in fp32 and bf16, small ones with eps inside the root",
          "[delta_rule_edges]") {
  const double size = GENERATE(1e-3, 1.0, 8.0);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(size, c10::toString(dtype));
  DeltaRuleArgs args = make({.offsets = {0, 64}, .H = 1, .HV = 1, .K = 64, .V = 16, .dtype = dtype});
  const at::Tensor unit = args.k.detach().to(at::kDouble);
  args.k = (size * unit / unit.norm(2, {-1}, true)).to(dtype).set_requires_grad(true);
  check_equal(run(delta_rule, args), run(delta_rule_ref, to_double(args)), dtype == at::kFloat ? 1e-5 : 2e-2);
  if (size > 1e-3) return;
  // What a key of norm 1e-3 stores of a value with beta 1 from nothing, read with itself: norm^2 after
  // normalisation, 1 / 2 with eps 1e-6 inside the root.
  const at::NoGradGuard no_grad;
  DeltaRuleArgs first = only(args, 0, 1, 0);
  first.q = first.k;
  first.scale = 1.0;
  first.beta = at::ones_like(first.beta);
  check_close("o", delta_rule(first).o, first.v * 0.5, 1e-2);
}

TEST_CASE("a later token changes no earlier output bit and a prefix loss reaches no later token",
          "[delta_rule_edges]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const int64_t T = GENERATE(15, 17, 22, 33, 63, 65);
  CAPTURE(to_string(decay), T);
  const DeltaRuleArgs args = make({.offsets = {0, T},
                                   .H = 4,
                                   .HV = 4,
                                   .K = 32,
                                   .V = 32,
                                   .decay = decay,
                                   .write_key = true,
                                   .dtype = at::kFloat});
  DeltaRuleArgs changed = args;
  const auto with_new_last = [T](const at::Tensor& x, double value) {
    if (!x.defined()) return x;
    at::Tensor copy = x.detach().clone();
    copy[T - 1].fill_(value);
    return copy.set_requires_grad(true);
  };
  changed.q = with_new_last(args.q, 0.3);
  changed.k = with_new_last(args.k, -0.2);
  changed.v = with_new_last(args.v, 11);
  changed.beta = with_new_last(args.beta, 0.9);
  changed.write_key = with_new_last(args.write_key, 0.4);
  changed.log_decay = with_new_last(args.log_decay, -4.95);
  const at::Tensor o = delta_rule(args).o;
  CHECK(at::equal(o.narrow(0, 0, T - 1), delta_rule(changed).o.narrow(0, 0, T - 1)));
  std::vector<at::Tensor> leaves = {args.q, args.k, args.v, args.beta, args.write_key};
  if (decay != Decay::kNone) leaves.push_back(args.log_decay);
  for (const at::Tensor& gradient : torch::autograd::grad({o.narrow(0, 0, T - 1).square().sum()}, leaves))
    CHECK(gradient[T - 1].abs().max().item<double>() == 0);
}

TEST_CASE("positions beyond 65,536 are computed like all others", "[delta_rule_edges]") {
  constexpr int64_t T = 65537;
  const DeltaRuleArgs args = make({.offsets = {0, T}, .H = 1, .HV = 1, .K = 4, .V = 4, .dtype = at::kFloat});
  const at::NoGradGuard no_grad;
  const DeltaRuleOutput whole = delta_rule(args);
  DeltaRuleArgs tail = only(args, T - 64, 64, 0);
  tail.initial_state = delta_rule(only(args, 0, T - 64, 0)).final_state;
  // The same tokens in other chunks: float32 rounding.
  check_close("o", delta_rule(tail).o, whole.o.narrow(0, T - 64, 64), 1e-5);
}

TEST_CASE("arguments that do not fit delta_rule are refused by name", "[delta_rule_edges]") {
  const DeltaRuleArgs good =
      make({.offsets = {0, 4}, .H = 2, .HV = 4, .K = 3, .V = 2, .decay = Decay::kScalar});
  const auto refusal = [](const DeltaRuleArgs& args) -> std::string {
    try {
      delta_rule(args);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal(good) == "accepted");
  DeltaRuleArgs bad = good;
  bad.beta = good.beta.t();
  CHECK(refusal(bad).find("delta_rule: beta: expected shape [4, 4]") ==
        std::string::npos);  // 4 x 4 fits either way
  bad = good;
  bad.beta = at::zeros({2, 4}, at::kDouble);
  CHECK(refusal(bad).find("delta_rule: beta: expected shape [4, 4], got [2, 4]") == 0);
  bad = good;
  bad.k = good.k.to(at::kFloat);
  CHECK(refusal(bad).find("delta_rule: k: expected dtype Double, got Float") == 0);
  bad = good;
  bad.v = at::zeros({4, 3, 2}, at::kDouble);
  CHECK(refusal(bad).find("delta_rule: v: expected a multiple of the 2 query heads") == 0);
  bad = good;
  bad.log_decay = good.log_decay.detach().exp();
  CHECK(refusal(bad).find("delta_rule: log_decay: expected natural logarithms <= 0") == 0);
  const auto decay_refusal = [&](at::ScalarType inputs, Decay decay, at::ScalarType given) {
    DeltaRuleArgs args =
        make({.offsets = {0, 4}, .H = 2, .HV = 4, .K = 3, .V = 2, .decay = decay, .dtype = inputs});
    args.log_decay = args.log_decay.detach().to(given);
    return refusal(args);
  };
  CHECK(decay_refusal(at::kBFloat16, Decay::kChannel, at::kFloat) == "accepted");
  CHECK(decay_refusal(at::kBFloat16, Decay::kChannel, at::kBFloat16) == "accepted");
  CHECK(decay_refusal(at::kBFloat16, Decay::kChannel, at::kHalf) ==
        "delta_rule: log_decay: expected dtype Float, BFloat16, got Half");
  CHECK(decay_refusal(at::kBFloat16, Decay::kScalar, at::kBFloat16) ==
        "delta_rule: log_decay: expected dtype Float, got BFloat16");
  CHECK(decay_refusal(at::kFloat, Decay::kChannel, at::kBFloat16) ==
        "delta_rule: log_decay: expected dtype Float, got BFloat16");
  CHECK(decay_refusal(at::kDouble, Decay::kChannel, at::kFloat) ==
        "delta_rule: log_decay: expected dtype Double, got Float");
  bad = good;
  bad.sequences = Sequences::equal(1, 5, at::kCPU);
  CHECK(refusal(bad).find("delta_rule: q: expected the 5 tokens of the sequences, got 4") == 0);
  bad = good;
  bad.initial_state = at::zeros({1, 4, 2, 3}, at::kDouble);
  CHECK(refusal(bad).find("delta_rule: initial_state: expected shape [1, 4, 3, 2]") == 0);
}

}  // namespace osdn::ops::delta_rule_edges_test
