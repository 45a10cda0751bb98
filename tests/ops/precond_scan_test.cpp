// The preconditioner scan against its token loop and finite differences in every mode, and the identities
// that make it an online preconditioner.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/delta_rule.h"
#include "ops/l2_norm.h"
#include "ops/precond_scan.h"
#include "tests/ops/precond_scan_cases.h"
#include "tests/support/test.h"

namespace osdn::ops::precond_scan_test {

using osdn::test::check_close;

constexpr double kFloat64Rounding = 1e-11;

// Every mode of the scan: rule x anchored x key norm x retention.
std::vector<Spec> all_modes(const Spec& base) {
  std::vector<Spec> modes;
  for (const HypergradientRule rule : {HypergradientRule::kBetaAware, HypergradientRule::kBetaFree})
    for (const bool divide : {false, true})
      for (const Retention retention : {Retention::kNone, Retention::kPerHead, Retention::kPerChannel})
        for (const bool anchored : {false, true}) {
          if (anchored && retention == Retention::kNone) continue;
          Spec spec = base;
          spec.options.rule = rule;
          spec.options.divide_by_key_norm = divide;
          spec.options.anchored = anchored;
          spec.retention = retention;
          modes.push_back(spec);
        }
  return modes;
}

std::string describe(const Spec& spec) {
  return std::string(spec.options.rule == HypergradientRule::kBetaAware ? "aware" : "free") +
         (spec.options.divide_by_key_norm ? " divided" : "") + (spec.options.anchored ? " anchored" : "") +
         " retention " + std::to_string(static_cast<int>(spec.retention));
}

double share_at_box(const at::Tensor& statistics) {
  const at::Tensor host = statistics.cpu();
  return host[kResidualScaleAtBox].item<double>() / host[kResidualScaleCount].item<double>();
}

TEST_CASE("precond_scan equals the token loop in value and every gradient in every mode", "[precond_scan]") {
  const bool normalize = GENERATE(true, false);
  for (Spec& spec : all_modes({.offsets = {0, 0, 5, 5, 71, 72, 90}, .H = 2, .HV = 4, .K = 5})) {
    INFO(describe(spec));
    spec.options.l2_normalize = normalize;
    spec.options.step_size = normalize ? 1.0 : 0.1;
    const PrecondScanArgs args = make(spec);
    const Result actual = run(precond_scan, args);
    const Result expected = run(precond_scan_ref, args);
    check_equal(actual, expected, kFloat64Rounding);
    check_close("statistics", actual.statistics, expected.statistics, kFloat64Rounding);
    // Some entries are clipped and some are not, or the comparison would not see the clip.
    CHECK(share_at_box(actual.statistics) > 0);
    CHECK(share_at_box(actual.statistics) < 1);
  }
}

TEST_CASE("precond_scan equals the token loop at any length", "[precond_scan]") {
  const int64_t length = GENERATE(1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 257, 1000);
  const PrecondScanArgs args =
      make({.offsets = {0, length}, .H = 1, .HV = 1, .K = 7, .retention = Retention::kPerHead});
  check_equal(run(precond_scan, args), run(precond_scan_ref, args), kFloat64Rounding);
}

TEST_CASE("every gradient of precond_scan agrees with finite differences", "[precond_scan]") {
  for (const bool carried : {false, true})
    for (const Spec& mode :
         all_modes({.offsets = {0, 3, 3, 4, 10}, .H = 1, .HV = 2, .K = 3, .carried = carried})) {
      INFO(describe(mode) << (carried ? " carried" : ""));
      const PrecondScanArgs args = make(mode);
      const Result result = run(precond_scan, args);
      for (const auto& [name, input] : inputs(args)) {
        const at::Tensor numeric = osdn::test::finite_difference(
            [&args] { return loss(precond_scan(args)).item<double>(); }, input.detach());
        // Central differences with step 1e-6 carry 1e-10 of rounding over values near 1.
        check_close("d" + name, result.gradients.at(name), numeric, 1e-7);
      }
    }
}

TEST_CASE("every sequence of a pack restarts from d0 and equals its own run", "[precond_scan]") {
  const std::vector<int64_t> offsets = {0, 0, 5, 5, 78, 205, 205};
  const PrecondScanArgs args =
      make({.offsets = offsets, .H = 1, .HV = 2, .K = 4, .retention = Retention::kPerHead});
  const at::NoGradGuard no_grad;
  const PrecondScanOutput packed = precond_scan(args);
  const at::Tensor d0 = args.initial_scale.value.clamp(args.options.box_min, args.options.box_max);
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const auto row = static_cast<int64_t>(s);
    const int64_t length = offsets[s + 1] - offsets[s];
    if (length == 0) {
      CHECK(at::equal(packed.final_d[row], d0));
      continue;
    }
    const PrecondScanOutput alone = precond_scan(only(args, offsets[s], length, {}));
    CHECK(at::equal(packed.write_key.narrow(0, offsets[s], length), alone.write_key));
    CHECK(at::equal(packed.final_d[row], alone.final_d[0]));
  }
}

TEST_CASE("carrying d over a split equals one pass", "[precond_scan]") {
  const PrecondScanArgs args =
      make({.offsets = {0, 130}, .H = 1, .HV = 2, .K = 8, .retention = Retention::kPerChannel});
  const at::NoGradGuard no_grad;
  const PrecondScanOutput whole = precond_scan(args);
  const std::vector<std::vector<int64_t>> splits = {
      {30, 100}, {1, 129}, {64, 66}, std::vector<int64_t>(130, 1)};
  for (const std::vector<int64_t>& pieces : splits) {
    std::vector<at::Tensor> keys;
    at::Tensor d;
    int64_t begin = 0;
    for (const int64_t length : pieces) {
      const PrecondScanOutput out = precond_scan(only(args, begin, length, d));
      keys.push_back(out.write_key);
      d = out.final_d;
      begin += length;
    }
    CHECK(at::equal(at::cat(keys), whole.write_key));
    CHECK(at::equal(d, whole.final_d));
  }
}

TEST_CASE("step size 0 and d0 of 1 give the plain delta rule bit for bit", "[precond_scan]") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  Spec spec{.offsets = {0, 100, 133}, .H = 2, .HV = 2, .K = 16, .dtype = dtype};
  spec.options.step_size = 0;
  PrecondScanArgs args = make(spec);
  args.initial_scale.value = at::ones({2, 16}, args.beta.options());
  const at::NoGradGuard no_grad;
  const at::Tensor q = at::randn({133, 2, 16}).to(dtype);
  const at::Tensor v = at::randn({133, 2, 8}).to(dtype);
  DeltaRuleArgs plain{.q = q, .k = args.k, .v = v, .beta = args.beta, .sequences = args.sequences};
  DeltaRuleArgs preconditioned = plain;
  preconditioned.write_key = precond_scan(args).write_key;
  CHECK(at::equal(delta_rule(plain).o, delta_rule(preconditioned).o));
  CHECK(at::equal(delta_rule(plain).final_state, delta_rule(preconditioned).final_state));
}

TEST_CASE("the beta-free rule from d0 of 1 without retention stays the plain delta rule", "[precond_scan]") {
  Spec spec{.offsets = {0, 500}, .H = 1, .HV = 1, .K = 16};
  spec.options.rule = HypergradientRule::kBetaFree;
  PrecondScanArgs args = make(spec);
  args.initial_scale.value = at::ones({1, 16}, at::kDouble);
  const PrecondScanOutput out = precond_scan(args);
  // Unit keys make <1, k^2> = 1 and the step zero, up to the eps of the normalisation: |k|^2 misses 1 by 1e-6
  // / |k|^2.
  check_close("write_key", out.write_key, l2_norm(args.k), 1e-5);
}

TEST_CASE("the residual ratio of a write is (1 - beta <d, k^2>)^2, whatever the state", "[precond_scan]") {
  at::manual_seed(5);
  const at::Tensor k = at::randn({1, 1, 6}, at::kDouble);
  const at::Tensor v = at::randn({1, 1, 4}, at::kDouble);
  const at::Tensor beta = at::full({1, 1}, 0.7, at::kDouble);
  const at::Tensor state = at::randn({1, 1, 6, 4}, at::kDouble);
  const at::Tensor log_decay = at::full({1, 1, 6}, -0.4, at::kDouble) * at::rand({1, 1, 6}, at::kDouble);
  PrecondScanArgs scan;
  scan.k = k;
  scan.beta = beta;
  scan.initial_scale.value = 0.7 + 0.7 * at::rand({1, 6}, at::kDouble);
  scan.sequences = Sequences::equal(1, 1, at::kCPU);
  scan.options.l2_normalize = false;
  scan.collect_statistics = true;
  const PrecondScanOutput written = precond_scan(scan);
  const at::Tensor after = delta_rule({.q = k,
                                       .k = k,
                                       .v = v,
                                       .beta = beta,
                                       .write_key = written.write_key,
                                       .log_decay = log_decay,
                                       .initial_state = state,
                                       .sequences = scan.sequences,
                                       .l2_normalize = false})
                               .final_state;
  const auto residual = [&](const at::Tensor& s) {
    return (at::matmul(k.view({1, 6}), s.view({6, 4})) - v.view({1, 4})).square().sum().item<double>();
  };
  const at::Tensor decayed = state * log_decay.exp().view({1, 1, 6, 1});
  const double q = residual(after) / residual(decayed);
  CHECK(q == Approx(std::exp(written.statistics[kResidualLogSum].item<double>())).epsilon(1e-12));
}

TEST_CASE("in the realisable case the distance to the comparator shrinks by the exact amount",
          "[precond_scan]") {
  // Keys of unit norm and beta = 1 / <d*, k^2>: |d' - d*|^2 = |d - d*|^2 - eta (2 - eta beta^2 |k^2|^2) (1 -
  // beta s)^2.
  constexpr int64_t T = 200;
  constexpr int64_t K = 16;
  const double eta = 1.0;
  at::manual_seed(11);
  const at::Tensor target = 1.1 + 0.4 * at::rand({K}, at::kDouble);
  at::Tensor keys = at::randn({T, 1, K}, at::kDouble);
  keys = keys / keys.norm(2, {-1}, true);
  const at::Tensor x = keys.view({T, K}).square();
  const at::Tensor beta = 1 / at::matmul(x, target);
  PrecondScanArgs args;
  args.k = keys;
  args.beta = beta.view({T, 1});
  args.initial_scale.value = at::ones({1, K}, at::kDouble);
  args.sequences = Sequences::equal(1, T, at::kCPU);
  args.options.box_min = 0;
  args.options.box_max = 1e9;
  args.options.l2_normalize = false;
  args.options.step_size = eta;
  const PrecondScanOutput out = precond_scan(args);
  const at::Tensor used = out.write_key.view({T, K}) / keys.view({T, K});
  const at::Tensor next = at::cat({used.slice(0, 1), out.final_d.view({1, K})});
  const auto distance = [&](const at::Tensor& d) { return (d - target).square().sum(1); };
  const at::Tensor residual = (1 - beta * (used * x).sum(1)).square();
  const at::Tensor curvature = beta.square() * x.square().sum(1);
  const at::Tensor predicted = distance(used) - eta * (2 - eta * curvature) * residual;
  CHECK((distance(next) - predicted).abs().max().item<double>() < 1e-13);
  const double bound = distance(used)[0].item<double>() / (eta * (2 - eta * curvature.max().item<double>()));
  CHECK(residual.sum().item<double>() <= bound);
}

TEST_CASE("the write strength stays between 0 and the upper bound of the box for unit keys",
          "[precond_scan]") {
  for (const Spec& mode : all_modes({.offsets = {0, 400}, .H = 1, .HV = 2, .K = 8})) {
    const PrecondScanArgs args = make(mode);
    const at::NoGradGuard no_grad;
    const PrecondScanOutput out = precond_scan(args);
    const at::Tensor unit = l2_norm(args.k).expand_as(out.write_key);
    const at::Tensor strength = args.beta * (out.write_key * unit).sum(-1);
    INFO(describe(mode));
    CHECK(strength.min().item<double>() >= 0);
    CHECK(strength.max().item<double>() <= args.options.box_max);
    CHECK(out.statistics[kResidualStrengthMax].item<double>() == Approx(strength.max().item<double>()));
  }
}

TEST_CASE(
    "the chunk length of the delta rule does not change the preconditioned result while the clip is active",
    "[precond_scan]") {
  const PrecondScanArgs args = make({.offsets = {0, 90, 200}, .H = 1, .HV = 1, .K = 8});
  const at::NoGradGuard no_grad;
  const PrecondScanOutput scan = precond_scan(args);
  REQUIRE(share_at_box(scan.statistics) > 0.05);
  const DeltaRuleArgs delta{.q = at::randn({200, 1, 8}, at::kDouble),
                            .k = args.k,
                            .v = at::randn({200, 1, 4}, at::kDouble),
                            .beta = args.beta,
                            .write_key = scan.write_key,
                            .sequences = args.sequences};
  const at::Tensor truth = delta_rule_ref(delta).o;
  for (const int64_t chunk : {1, 8, 32, 64})
    check_close("o", delta_rule_chunked(delta, chunk).o, truth, 1e-11);
  check_close("o", delta_rule(delta).o, truth, 1e-11);
}

TEST_CASE("detached, only the key's direct factor has a gradient", "[precond_scan]") {
  Spec spec{.offsets = {0, 70, 75}, .H = 1, .HV = 2, .K = 5, .retention = Retention::kPerHead};
  spec.options.detach = true;
  spec.options.l2_normalize = false;
  spec.options.step_size = 0.1;
  const PrecondScanArgs args = make(spec);
  const Result result = run(precond_scan, args);
  check_equal(result, run(precond_scan_ref, args), kFloat64Rounding);
  const at::Tensor d = result.write_key / args.k.detach();
  check_close("dk", result.gradients.at("k"), (d * weights_like(result.write_key, 1)).sum(1, true), 1e-10);
  for (const char* name : {"beta", "retention", "initial_scale"})
    CHECK(result.gradients.at(name).abs().max().item<double>() == 0);
}

TEST_CASE("the key handed on for reading is the key, and its gradient is added to the key's",
          "[precond_scan]") {
  const bool detach = GENERATE(false, true);
  Spec spec{.offsets = {0, 40, 40, 75}, .H = 2, .HV = 4, .K = 5, .retention = Retention::kPerHead};
  spec.options.detach = detach;
  const PrecondScanArgs args = make(spec);
  const at::Tensor own = run(precond_scan, args).gradients.at("k");
  const at::Tensor upstream = weights_like(args.k, 3);  // [N, H, K]
  const auto gradient = [&](const at::Tensor& of) { return torch::autograd::grad({of}, {args.k})[0]; };
  for (const auto& op : {precond_scan, precond_scan_ref}) {
    const PrecondScanOutput out = op(args);
    CHECK(out.read_key.data_ptr() == args.k.data_ptr());
    check_close("dk", gradient(loss(out) + (out.read_key * upstream).sum()), own + upstream, 1e-12);
    CHECK(at::equal(gradient((op(args).read_key * upstream).sum()), upstream));
  }
}

TEST_CASE("the gradient of d0 is added to its sink, and is zero outside the box", "[precond_scan]") {
  PrecondScanArgs args = make({.offsets = {0, 40, 80, 80}, .H = 1, .HV = 2, .K = 4, .dtype = at::kFloat});
  args.initial_scale.value = at::linspace(0.5, 1.6, 8).view({2, 4}).set_requires_grad(true);
  const at::Tensor through_autograd = run(precond_scan, args).gradients.at("initial_scale");
  args.initial_scale.value = args.initial_scale.value.detach();
  args.initial_scale.sink = at::full({2, 4}, 3, at::kFloat);
  torch::autograd::backward({loss(precond_scan(args))}, {});
  check_close("sink", args.initial_scale.sink, through_autograd + 3, 1e-7);
  const at::Tensor outside =
      (args.initial_scale.value < args.options.box_min) | (args.initial_scale.value > args.options.box_max);
  REQUIRE(outside.any().item<bool>());
  REQUIRE(!outside.all().item<bool>());
  CHECK(through_autograd.masked_select(outside).abs().max().item<double>() == 0);
  CHECK(through_autograd.masked_select(~outside).abs().min().item<double>() > 0);
}

TEST_CASE("without its clamp d0 is used as it is and always has a gradient", "[precond_scan]") {
  Spec spec{.offsets = {0, 9}, .H = 1, .HV = 1, .K = 4};
  spec.options.clamp_initial = false;
  PrecondScanArgs args = make(spec);
  args.initial_scale.value = at::zeros({1, 4}, at::kDouble).set_requires_grad(true);
  const Result result = run(precond_scan, args);
  CHECK(result.write_key[0].abs().max().item<double>() == 0);
  CHECK(result.gradients.at("initial_scale").abs().min().item<double>() > 0);
  check_equal(result, run(precond_scan_ref, args), kFloat64Rounding);
}

TEST_CASE("an entry that rests on a bound of the box keeps its gradient", "[precond_scan]") {
  // beta = 0 leaves d where it is: on the upper bound the proposed value equals the bound and counts as
  // inside.
  PrecondScanArgs args = make({.offsets = {0, 3}, .H = 1, .HV = 1, .K = 3});
  args.beta = at::zeros({3, 1}, at::kDouble).set_requires_grad(true);
  args.initial_scale.value = at::full({1, 3}, 1.5, at::kDouble).set_requires_grad(true);
  const Result result = run(precond_scan, args);
  CHECK(result.gradients.at("initial_scale").abs().min().item<double>() > 0);
  check_equal(result, run(precond_scan_ref, args), kFloat64Rounding);
}

TEST_CASE("zero and denormal keys of the scan have finite values and gradients", "[precond_scan]") {
  for (const Spec& mode : all_modes({.offsets = {0, 12}, .H = 1, .HV = 1, .K = 4, .dtype = at::kFloat})) {
    INFO(describe(mode));
    PrecondScanArgs args = make(mode);
    at::Tensor k = args.k.detach().clone();
    k.narrow(0, 0, 3).zero_();
    k[2][0][1] = 1e-40;
    args.k = k.set_requires_grad(true);
    const Result result = run(precond_scan, args);
    CHECK(at::isfinite(result.write_key).all().item<bool>());
    for (const auto& [name, gradient] : result.gradients) CHECK(at::isfinite(gradient).all().item<bool>());
    CHECK(result.gradients.at("k")[0].abs().max().item<double>() < 1e4);
  }
}

TEST_CASE("strided keys, betas and upstream gradients give the bits of contiguous ones", "[precond_scan]") {
  const PrecondScanArgs args = make({.offsets = {0, 50}, .H = 2, .HV = 2, .K = 4, .dtype = at::kFloat});
  PrecondScanArgs strided = args;
  at::Tensor fused = at::full({53, 3 * 8}, 1e30, at::kFloat);
  fused.narrow(0, 0, 50).narrow(1, 8, 8).copy_(args.k.detach().flatten(1));
  strided.k = fused.narrow(0, 0, 50).narrow(1, 8, 8).view({50, 2, 4}).detach().set_requires_grad(true);
  at::Tensor pairs = at::full({50, 4}, 1e30, at::kFloat);
  pairs.slice(1, 0, 4, 2).copy_(args.beta.detach());
  strided.beta = pairs.slice(1, 0, 4, 2).detach().set_requires_grad(true);
  const Result a = run(precond_scan, args);
  const Result b = run(precond_scan, strided);
  CHECK(at::equal(a.write_key, b.write_key));
  for (const auto& [name, gradient] : a.gradients) CHECK(at::equal(gradient, b.gradients.at(name)));
  const auto summed = torch::autograd::grad({precond_scan(args).write_key.sum()}, {args.k, args.beta});
  const auto weighted = torch::autograd::grad({(precond_scan(args).write_key * at::ones({50, 2, 4})).sum()},
                                              {args.k, args.beta});
  for (size_t i = 0; i < 2; ++i) CHECK(at::equal(summed[i], weighted[i]));
}

TEST_CASE("the bits do not depend on the number of threads", "[precond_scan]") {
  const PrecondScanArgs args = make({.offsets = {0, 100, 101, 333, 400},
                                     .H = 2,
                                     .HV = 4,
                                     .K = 16,
                                     .retention = Retention::kPerHead,
                                     .dtype = at::kFloat});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Result one = run(precond_scan, args);
  at::set_num_threads(3);
  const Result three = run(precond_scan, args);
  at::set_num_threads(threads);
  CHECK(at::equal(one.write_key, three.write_key));
  CHECK(at::equal(one.statistics, three.statistics));
  for (const auto& [name, gradient] : one.gradients) CHECK(at::equal(gradient, three.gradients.at(name)));
}

TEST_CASE("the scan in float32 and bf16 stays near float64", "[precond_scan]") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(c10::toString(dtype));
  // An open box: beside a bound the rounding of one entry would decide whether its gradient is cut.
  Spec spec{
      .offsets = {0, 100, 300}, .H = 2, .HV = 4, .K = 32, .retention = Retention::kPerHead, .dtype = dtype};
  spec.options.box_min = 0;
  spec.options.box_max = 1e9;
  const PrecondScanArgs args = make(spec);
  // Float32: a contraction over up to 200 tokens of 32 channels. bf16: the normalised key and the write key
  // are rounded to 2^-9 each; d itself stays in float32.
  check_equal(run(precond_scan, args), run(precond_scan_ref, to_double(args)),
              dtype == at::kFloat ? 1e-5 : 1e-2);
}

TEST_CASE("arguments that do not fit the scan are refused by name", "[precond_scan]") {
  const PrecondScanArgs good =
      make({.offsets = {0, 4}, .H = 2, .HV = 4, .K = 3, .retention = Retention::kPerHead});
  const auto refusal = [](const PrecondScanArgs& args) -> std::string {
    try {
      precond_scan(args);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal(good) == "accepted");
  PrecondScanArgs bad = good;
  bad.retention = at::ones({4, 2}, at::kDouble);
  CHECK(refusal(bad).find("precond_scan: retention: expected shape [4, 4], got [4, 2]") == 0);
  bad = good;
  bad.initial_scale.value = at::ones({2, 3}, at::kDouble);
  CHECK(refusal(bad).find("precond_scan: initial_scale: expected shape [4, 3], got [2, 3]") == 0);
  bad = good;
  bad.beta = at::ones({4, 3}, at::kDouble);
  CHECK(refusal(bad).find("precond_scan: beta: expected a multiple of the 2 key heads") == 0);
  bad = good;
  bad.options.box_min = 2;
  CHECK(refusal(bad).find("precond_scan: box: ") == 0);
}

TEST_CASE("precond_scan on the device agrees with float64 on the CPU in every mode", "[precond_scan][cuda]") {
  for (const Spec& mode : all_modes({.offsets = {0, 0, 5, 5, 70, 71, 120}, .H = 2, .HV = 4, .K = 8})) {
    INFO(describe(mode));
    const PrecondScanArgs args = make(mode);
    const Result truth = run(precond_scan_ref, args);
    const PrecondScanArgs on_device = to_device(args, at::Device(at::kCUDA, 0));
    const Result actual = run(precond_scan, on_device);
    check_equal(actual, truth, 1e-10);
    check_close("statistics", actual.statistics, truth.statistics, 1e-10);
    check_equal(run(precond_scan_ref, on_device), truth, 1e-10);
  }
  Spec spec{.offsets = {0, 100, 300},
            .H = 2,
            .HV = 4,
            .K = 32,
            .retention = Retention::kPerHead,
            .dtype = at::kFloat};
  spec.options.box_min = 0;
  spec.options.box_max = 1e9;
  spec.carried = true;
  const PrecondScanArgs args = make(spec);
  check_equal(run(precond_scan, to_device(args, at::Device(at::kCUDA, 0))),
              run(precond_scan_ref, to_double(args)), 1e-5);
}

}  // namespace osdn::ops::precond_scan_test
