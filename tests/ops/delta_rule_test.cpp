// The delta rule against its token recurrence in float64 and against finite differences: every decay, write
// key, state, length and pack.
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/delta_rule.h"
#include "tests/ops/delta_rule_cases.h"
#include "tests/support/test.h"

namespace osdn::ops::delta_rule_test {

using osdn::test::check_close;

// Two orders of the same float64 sums over at most 1000 tokens of well-conditioned recurrences.
constexpr double kFloat64Rounding = 1e-10;

TEST_CASE("delta_rule equals the token recurrence in value and every gradient at any length",
          "[delta_rule]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const int64_t length = GENERATE(1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 257, 1000);
  CAPTURE(to_string(decay), length);
  const DeltaRuleArgs args = make({.offsets = {0, length}, .H = 1, .HV = 1, .K = 6, .V = 5, .decay = decay});
  check_equal(run(delta_rule, args), run(delta_rule_ref, args), kFloat64Rounding);
}

TEST_CASE(
    "delta_rule equals the token recurrence with grouped heads, own write keys and initial states in a pack",
    "[delta_rule]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const bool write_key = GENERATE(false, true);
  const bool initial_state = GENERATE(false, true);
  const bool normalize = GENERATE(false, true);
  CAPTURE(to_string(decay), write_key, initial_state, normalize);
  DeltaRuleArgs args = make({.offsets = {0, 0, 5, 5, 105, 106, 106, 140},
                             .H = 2,
                             .HV = 4,
                             .K = 5,
                             .V = 3,
                             .decay = decay,
                             .write_key = write_key,
                             .initial_state = initial_state});
  args.l2_normalize = normalize;
  args.scale = 0.7;
  check_equal(run(delta_rule, args), run(delta_rule_ref, args), kFloat64Rounding);
}

TEST_CASE("log-decays by channel in bf16 count as the same numbers in fp32, their gradient is rounded once",
          "[delta_rule]") {
  const bool write_key = GENERATE(false, true);
  const DeltaRuleArgs narrow = make({.offsets = {0, 1, 1, 66, 140},
                                     .H = 2,
                                     .HV = 4,
                                     .K = 16,
                                     .V = 8,
                                     .decay = Decay::kChannel,
                                     .write_key = write_key,
                                     .initial_state = true,
                                     .dtype = at::kBFloat16,
                                     .decay_in_dtype = true});
  REQUIRE(narrow.log_decay.scalar_type() == at::kBFloat16);
  DeltaRuleArgs wide = narrow;
  wide.log_decay = narrow.log_decay.detach().to(at::kFloat).set_requires_grad(true);
  const auto chunked = [](const DeltaRuleArgs& args) { return delta_rule_chunked(args); };
  for (const auto& op : {std::function<DeltaRuleOutput(const DeltaRuleArgs&)>(delta_rule),
                         std::function<DeltaRuleOutput(const DeltaRuleArgs&)>(delta_rule_ref),
                         std::function<DeltaRuleOutput(const DeltaRuleArgs&)>(chunked)}) {
    const Result of_narrow = run(op, narrow);
    const Result of_wide = run(op, wide);
    CHECK(at::equal(of_narrow.o, of_wide.o));
    CHECK(at::equal(of_narrow.final_state, of_wide.final_state));
    for (const auto& [name, gradient] : of_wide.gradients) {
      INFO(name);
      const at::Tensor& found = of_narrow.gradients.at(name);
      CHECK(found.scalar_type() == (name == "log_decay" ? at::kBFloat16 : gradient.scalar_type()));
      CHECK(at::equal(found, gradient.to(found.scalar_type())));
    }
  }
}

TEST_CASE("delta_rule_chunked equals the token recurrence whatever the chunk length", "[delta_rule]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const DeltaRuleArgs args = make({.offsets = {0, 3, 3, 40, 169},
                                   .H = 1,
                                   .HV = 2,
                                   .K = 4,
                                   .V = 3,
                                   .decay = decay,
                                   .write_key = true,
                                   .initial_state = true});
  const Result truth = run(delta_rule_ref, args);
  for (const int64_t chunk : {1, 2, 16, 64, 128}) {
    CAPTURE(to_string(decay), chunk);
    check_equal(run([chunk](const DeltaRuleArgs& a) { return delta_rule_chunked(a, chunk); }, args), truth,
                kFloat64Rounding);
  }
  CHECK_THROWS_AS(delta_rule_chunked(args, 48), UserError);
}

TEST_CASE("every gradient of delta_rule agrees with finite differences", "[delta_rule]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const bool write_key = GENERATE(false, true);
  CAPTURE(to_string(decay), write_key);
  const DeltaRuleArgs args = make({.offsets = {0, 3, 3, 4, 9},
                                   .H = 1,
                                   .HV = 2,
                                   .K = 3,
                                   .V = 2,
                                   .decay = decay,
                                   .write_key = write_key,
                                   .initial_state = true});
  const Result result = run(delta_rule, args);
  for (const auto& [name, input] : inputs(args)) {
    const at::Tensor numeric = osdn::test::finite_difference(
        [&args = args] { return loss(delta_rule(args)).item<double>(); }, input.detach());
    // Central differences with step 1e-6 carry 1e-10 of rounding over values near 1.
    check_close("d" + name, result.gradients.at(name), numeric, 1e-7);
  }
}

TEST_CASE("delta_rule gives gradients through one output alone", "[delta_rule]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const DeltaRuleArgs args = make({.offsets = {0, 70, 75},
                                   .H = 1,
                                   .HV = 1,
                                   .K = 4,
                                   .V = 4,
                                   .decay = decay,
                                   .write_key = true,
                                   .initial_state = true});
  for (const Through through : {Through::kOutput, Through::kFinalState}) {
    CAPTURE(to_string(decay), static_cast<int>(through));
    check_equal(run(delta_rule, args, through), run(delta_rule_ref, args, through), kFloat64Rounding);
  }
}

TEST_CASE("every document of a pack equals its own unpacked run", "[delta_rule]") {
  const std::vector<std::vector<int64_t>> packs = {
      {0, 0, 5, 5, 781, 2048, 2048}, {0, 1, 2, 3, 4}, {0, 781, 2048}, {0, 64, 128}};
  for (const std::vector<int64_t>& offsets : packs) {
    const DeltaRuleArgs args = make({.offsets = offsets,
                                     .H = 1,
                                     .HV = 1,
                                     .K = 4,
                                     .V = 4,
                                     .decay = Decay::kScalar,
                                     .initial_state = true});
    const Result packed = run(delta_rule, args);
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      const int64_t begin = offsets[s];
      const int64_t length = offsets[s + 1] - begin;
      CAPTURE(begin, length);
      const auto row = static_cast<int64_t>(s);
      if (length == 0) {
        CHECK(at::equal(packed.final_state.select(0, row), args.initial_state.detach().select(0, row)));
        continue;
      }
      const Result alone = run(delta_rule, only(args, begin, length, row));
      check_close("o", packed.o.narrow(0, begin, length), alone.o, kFloat64Rounding);
      check_close("final_state", packed.final_state.narrow(0, row, 1), alone.final_state, kFloat64Rounding);
      for (const char* name : {"q", "k", "v", "beta", "log_decay"})
        check_close(std::string("d") + name, packed.gradients.at(name).narrow(0, begin, length),
                    alone.gradients.at(name), kFloat64Rounding);
    }
  }
}

TEST_CASE("a pack of empty documents only has no output and keeps its states", "[delta_rule]") {
  const DeltaRuleArgs args =
      make({.offsets = {0, 0, 0}, .H = 1, .HV = 2, .K = 3, .V = 2, .initial_state = true});
  const Result result = run(delta_rule, args);
  CHECK(result.o.sizes() == at::IntArrayRef({0, 2, 2}));
  CHECK(at::equal(result.final_state, args.initial_state.detach()));
  CHECK(at::equal(result.gradients.at("initial_state"), final_weights(result.final_state)));
  CHECK(result.gradients.at("q").numel() == 0);
}

TEST_CASE(
    "delta_rule reads strided views of a fused projection like contiguous copies, and nothing behind them",
    "[delta_rule]") {
  const int64_t T = GENERATE(1, 17, 63, 65, 127);
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  CAPTURE(T, to_string(decay));
  const DeltaRuleArgs plain = make({.offsets = {0, T},
                                    .H = 2,
                                    .HV = 2,
                                    .K = 4,
                                    .V = 4,
                                    .decay = decay,
                                    .write_key = true,
                                    .dtype = at::kFloat});
  // Column slices of one poisoned buffer with rows to spare: [T + 3, 2 * 4 * columns].
  const auto view_of = [T](const at::Tensor& x) {
    at::Tensor buffer = at::full({T + 3, x[0].numel() + 7}, 1e30, x.options());
    buffer.narrow(0, 0, T).narrow(1, 5, x[0].numel()).copy_(x.detach().flatten(1));
    return buffer.narrow(0, 0, T).narrow(1, 5, x[0].numel()).view(x.sizes()).detach().set_requires_grad(true);
  };
  DeltaRuleArgs strided = plain;
  strided.q = view_of(plain.q);
  strided.k = view_of(plain.k);
  strided.v = view_of(plain.v);
  strided.beta = view_of(plain.beta);
  strided.write_key = view_of(plain.write_key);
  if (decay != Decay::kNone) strided.log_decay = view_of(plain.log_decay);
  const Result a = run(delta_rule, plain);
  const Result b = run(delta_rule, strided);
  CHECK(at::equal(a.o, b.o));
  CHECK(at::equal(a.final_state, b.final_state));
  for (const auto& [name, gradient] : a.gradients) CHECK(at::equal(gradient, b.gradients.at(name)));
  CHECK(at::isfinite(b.final_state).all().item<bool>());
}

TEST_CASE("delta_rule accepts expanded, sliced and transposed upstream gradients", "[delta_rule]") {
  const DeltaRuleArgs args =
      make({.offsets = {0, 20, 70}, .H = 2, .HV = 2, .K = 4, .V = 4, .decay = Decay::kScalar});
  const auto gradients_of = [&](const std::function<at::Tensor(const DeltaRuleOutput&)>& scalar) {
    return torch::autograd::grad({scalar(delta_rule(args))},
                                 {args.q, args.k, args.v, args.beta, args.log_decay});
  };
  const auto check_same = [](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    for (size_t i = 0; i < a.size(); ++i) check_close("gradient", a[i], b[i], kFloat64Rounding);
  };
  const at::Tensor ones = at::ones({70, 2, 4}, at::kDouble);
  check_same(gradients_of([](const DeltaRuleOutput& y) { return y.o.sum() + y.final_state.sum(); }),
             gradients_of(
                 [&](const DeltaRuleOutput& y) { return (y.o * ones).sum() + (y.final_state * 1.0).sum(); }));
  at::Tensor even = at::zeros({70, 2, 4}, at::kDouble);
  even.slice(2, 0, 4, 2).fill_(1);
  check_same(gradients_of([](const DeltaRuleOutput& y) { return y.o.slice(2, 0, 4, 2).sum(); }),
             gradients_of([&](const DeltaRuleOutput& y) { return (y.o * even).sum(); }));
  const at::Tensor mixed = at::randn({4, 2, 70}, at::kDouble);
  check_same(gradients_of([&](const DeltaRuleOutput& y) { return (y.o.transpose(0, 2) * mixed).sum(); }),
             gradients_of(
                 [&](const DeltaRuleOutput& y) { return (y.o * mixed.transpose(0, 2).contiguous()).sum(); }));
}

TEST_CASE("carrying the state over a split equals one pass", "[delta_rule]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const DeltaRuleArgs args =
      make({.offsets = {0, 130}, .H = 1, .HV = 2, .K = 8, .V = 4, .decay = decay, .write_key = true});
  const at::NoGradGuard no_grad;
  const DeltaRuleOutput whole = delta_rule(args);
  const std::vector<std::vector<int64_t>> splits = {
      {1, 129}, {3, 127}, {63, 67}, {64, 66}, {10, 20, 30, 7, 1, 2, 60}, std::vector<int64_t>(130, 1)};
  for (const std::vector<int64_t>& pieces : splits) {
    std::vector<at::Tensor> outputs;
    at::Tensor state;
    int64_t begin = 0;
    for (const int64_t length : pieces) {
      DeltaRuleArgs piece = only(args, begin, length, 0);
      piece.initial_state = state;
      const DeltaRuleOutput out = delta_rule(piece);
      outputs.push_back(out.o);
      state = out.final_state;
      begin += length;
    }
    check_close("o", at::cat(outputs), whole.o, kFloat64Rounding);
    check_close("final_state", state, whole.final_state, kFloat64Rounding);
  }
}

TEST_CASE("delta_rule in float32 and bf16 stays near float64", "[delta_rule]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(to_string(decay), c10::toString(dtype));
  const DeltaRuleArgs args = make({.offsets = {0, 100, 201},
                                   .H = 2,
                                   .HV = 2,
                                   .K = 32,
                                   .V = 32,
                                   .decay = decay,
                                   .write_key = true,
                                   .initial_state = true,
                                   .dtype = dtype});
  // Float32: sums over 32 channels and 100 tokens. bf16: the inputs are the same in both, so what remains is
  // the rounding of normalised q and k (2^-9 each, partly averaged) and of the outputs.
  check_equal(run(delta_rule, args), run(delta_rule_ref, to_double(args)), dtype == at::kFloat ? 1e-5 : 1e-2);
}

TEST_CASE("the same call of delta_rule gives the same bits, on its CPU path with any number of threads",
          "[delta_rule]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const DeltaRuleArgs args = make({.offsets = {0, 100, 101, 333},
                                   .H = 2,
                                   .HV = 4,
                                   .K = 16,
                                   .V = 16,
                                   .decay = decay,
                                   .write_key = true,
                                   .initial_state = true,
                                   .dtype = at::kFloat});
  const int threads = at::get_num_threads();
  if (decay != Decay::kChannel) at::set_num_threads(1);
  const Result first = run(delta_rule, args);
  if (decay != Decay::kChannel) at::set_num_threads(3);
  const Result again = run(delta_rule, args);
  at::set_num_threads(threads);
  CHECK(at::equal(first.o, again.o));
  CHECK(at::equal(first.final_state, again.final_state));
  for (const auto& [name, gradient] : first.gradients) CHECK(at::equal(gradient, again.gradients.at(name)));
}

TEST_CASE("delta_rule on the device agrees with float64 on the CPU", "[delta_rule][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  CAPTURE(to_string(decay), c10::toString(dtype));
  const DeltaRuleArgs args = make({.offsets = {0, 0, 5, 5, 205, 206, 300},
                                   .H = 2,
                                   .HV = 4,
                                   .K = 32,
                                   .V = 16,
                                   .decay = decay,
                                   .write_key = true,
                                   .initial_state = true,
                                   .dtype = dtype});
  const double tolerance = dtype == at::kDouble ? kFloat64Rounding : dtype == at::kFloat ? 1e-5 : 1e-2;
  const Result truth = run(delta_rule_ref, to_double(args));
  const DeltaRuleArgs on_device = to_device(args, at::Device(at::kCUDA, 0));
  check_equal(run(delta_rule, on_device), truth, tolerance);
  check_equal(run([](const DeltaRuleArgs& a) { return delta_rule_chunked(a); }, on_device), truth, tolerance);
}

}  // namespace osdn::ops::delta_rule_test
