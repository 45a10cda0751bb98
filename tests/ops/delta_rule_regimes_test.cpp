// The delta rule on the GPU where it is hard: extreme gates, repeated and correlated keys with writes that
// nearly reflect, causality in bits, sizes beyond 16 and 32 bits.
#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/delta_rule_device.h"

namespace osdn::ops::delta_rule_regimes_test {

using delta_rule_device::check_against_float64;
using delta_rule_device::device_error;
using delta_rule_device::Draw;
using delta_rule_device::draw;
using delta_rule_device::equal_offsets;
using delta_rule_device::evaluate;
using delta_rule_device::kGpu;
using delta_rule_test::Decay;
using delta_rule_test::Result;
using delta_rule_test::to_string;

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().set_requires_grad(true); }

TEST_CASE("any gate from none to total forgetting gives float64's values and gradients",
          "[delta_rule_regimes][cuda]") {
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  const int pattern = GENERATE(0, 1, 2, 3, 4, 5, 6, 7);
  CAPTURE(to_string(decay), pattern);
  DeltaRuleArgs args =
      draw({.offsets = {0, 64, 150}, .H = 2, .HV = 2, .K = 64, .V = 64, .decay = decay, .write_key = true});
  at::Tensor gate = at::full_like(args.log_decay, -0.01).detach();
  if (pattern == 0) gate.fill_(std::log(1e-12));
  if (pattern == 1) gate.narrow(0, 20, 21).fill_(std::log(1e-12));
  if (pattern == 2) gate.masked_fill_(at::rand_like(gate) < 0.3, -1000);
  if (pattern == 3) gate.narrow(0, 30, 3).fill_(-std::numeric_limits<double>::infinity());
  if (pattern == 4) gate.zero_();
  if (pattern == 5) gate.fill_(-1e-6);
  if (pattern == 6) gate.fill_(-5);
  if (pattern == 7) gate.copy_(-8 * at::softplus(at::randn_like(gate)));  // A = 8, as gated layers have it
  args.log_decay = leaf(gate);
  args.beta = leaf(at::full_like(args.beta, 0.5));
  check_against_float64(args);
}

TEST_CASE("the gate's gradient at a sequence's first token is zero from a zero state",
          "[delta_rule_regimes][cuda]") {
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  CAPTURE(to_string(decay));
  DeltaRuleArgs args = draw({.offsets = {0, 192, 200, 201},
                             .H = 2,
                             .HV = 2,
                             .K = 128,
                             .V = 128,
                             .decay = decay,
                             .gate_divisor = 0.2,
                             .initial_state = false});
  check_against_float64(args);
  const Result without = evaluate(delta_rule, args);
  args.initial_state = at::zeros({3, 2, 128, 128}, args.beta.options());
  const Result with_zeros = evaluate(delta_rule, args);
  const at::Tensor& zeros_gradient = with_zeros.gradients.at("log_decay");
  const double largest = zeros_gradient.abs().max().item<double>();
  for (const int64_t first : {0, 192, 200}) {
    CHECK(without.gradients.at("log_decay")[first].abs().max().item<double>() == 0);
    // A state given as zeros is read like any other; what is left is a difference of equal fp32 numbers.
    CHECK(zeros_gradient[first].abs().max().item<double>() <= 1e-6 * largest);
  }
  CHECK(at::equal(without.o, with_zeros.o));
}

TEST_CASE("no gate, a gate of zero a head and a gate of zero a channel agree", "[delta_rule_regimes][cuda]") {
  const DeltaRuleArgs none = draw({.offsets = {0, 100, 230}, .H = 2, .HV = 4, .K = 64, .V = 64});
  const Result plain = evaluate(delta_rule, none);
  for (const bool channel : {false, true}) {
    CAPTURE(channel);
    DeltaRuleArgs zero = none;
    zero.log_decay =
        channel ? at::zeros({230, 4, 64}, none.beta.options()) : at::zeros({230, 4}, none.beta.options());
    const Result result = evaluate(delta_rule, zero);
    CHECK(device_error(result.o, plain.o) < 5e-3);
    CHECK(device_error(result.final_state, plain.final_state) < 5e-3);
    for (const auto& [name, gradient] : plain.gradients) {
      INFO(name);
      CHECK(device_error(result.gradients.at(name), gradient) < 1e-2);
    }
  }
}

TEST_CASE("a later token changes no earlier output bit, and a prefix loss reaches no later token",
          "[delta_rule_regimes][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const int64_t T = GENERATE(15, 17, 22, 33, 63, 65, 130);
  CAPTURE(to_string(decay), T);
  const DeltaRuleArgs args = draw({.offsets = {0, T},
                                   .H = 4,
                                   .HV = 4,
                                   .K = 128,
                                   .V = 128,
                                   .decay = decay,
                                   .gate_floor = -5,
                                   .write_key = true,
                                   .initial_state = false});
  DeltaRuleArgs edited = args;
  for (at::Tensor* x : {&edited.q, &edited.k, &edited.v, &edited.beta, &edited.write_key, &edited.log_decay})
    if (x->defined()) {
      *x = x->detach().clone();
      x->select(0, T - 1).fill_(x == &edited.log_decay ? -4.95 : 0.7);
    }
  const at::Tensor o = delta_rule(args).o;
  {
    const at::NoGradGuard no_grad;
    CHECK(at::equal(o.narrow(0, 0, T - 1), delta_rule(edited).o.narrow(0, 0, T - 1)));
  }
  std::vector<at::Tensor> leaves;
  for (const auto& [name, x] : delta_rule_test::inputs(args)) leaves.push_back(x);
  for (const at::Tensor& gradient :
       torch::autograd::grad({o.narrow(0, 0, T - 1).to(at::kFloat).square().sum()}, leaves))
    CHECK(gradient[T - 1].abs().max().item<double>() == 0);
}

TEST_CASE("equal and nearly equal keys hold at every strength of a write", "[delta_rule_regimes][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const double strength = GENERATE(0.5, 0.99, 1.29, 1.78, 1.96);
  const bool identical = GENERATE(false, true);
  CAPTURE(to_string(decay), strength, identical);
  DeltaRuleArgs args = draw({.offsets = {0, 513},
                             .H = 2,
                             .HV = 2,
                             .K = 128,
                             .V = 128,
                             .decay = decay,
                             .gate_divisor = 1000,
                             .write_key = true});
  const at::TensorOptions fp32 = args.beta.options().requires_grad(false);
  const at::Tensor common = at::randn({1, 2, 128}, fp32);
  const at::Tensor key =
      identical ? common.expand({513, 2, 128}) : 3 * common + at::randn({513, 2, 128}, fp32);
  const at::Tensor unit = (key / key.norm(2, {-1}, true)).to(at::kBFloat16);
  args.k = leaf(unit);
  args.write_key = leaf(unit);
  args.beta = leaf(at::full_like(args.beta, strength));
  check_against_float64(args);
}

TEST_CASE("single tokens, empty documents and a thousand documents with gates equal float64",
          "[delta_rule_regimes][cuda]") {
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  std::vector<int64_t> thousand = {0};
  for (int64_t i = 0; i < 1000; ++i) thousand.push_back(thousand.back() + i * 7919 % 23);
  for (const std::vector<int64_t>& offsets :
       {std::vector<int64_t>{0, 0, 5, 5, 781, 2048, 2048}, equal_offsets(200, 1),
        std::vector<int64_t>{0, 781, 2048}, thousand}) {
    CAPTURE(to_string(decay), offsets.size());
    check_against_float64(
        draw({.offsets = offsets, .H = 2, .HV = 2, .K = 128, .V = 128, .decay = decay, .write_key = true}));
  }
}

TEST_CASE("any length with gates equals float64", "[delta_rule_regimes][cuda]") {
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  const int64_t length = GENERATE(1, 15, 16, 17, 63, 64, 65, 127, 1000, 2048, 4097);
  const bool write_key = GENERATE(false, true);
  CAPTURE(to_string(decay), length, write_key);
  // Eight heads: an error over the two numbers of a single token's dbeta would be one of chance.
  check_against_float64(draw(
      {.offsets = {0, length}, .H = 8, .HV = 8, .K = 128, .V = 128, .decay = decay, .write_key = write_key}));
}

TEST_CASE("any head size with gates equals float64, with grouped heads and keys as given",
          "[delta_rule_regimes][cuda]") {
  const auto [K, V] = GENERATE(Catch::Generators::table<int64_t, int64_t>({{64, 64},
                                                                           {128, 256},
                                                                           {256, 256},
                                                                           {16, 16},
                                                                           {32, 48},
                                                                           {96, 80},
                                                                           {112, 192},
                                                                           {64, 128},
                                                                           {128, 64},
                                                                           {60, 100}}));
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const int64_t group = GENERATE(1, 3);
  CAPTURE(K, V, to_string(decay), group);
  DeltaRuleArgs args = draw({.offsets = {0, 100, 230},
                             .H = 2,
                             .HV = 2 * group,
                             .K = K,
                             .V = V,
                             .decay = decay,
                             .write_key = true,
                             .scale = 0.7});
  check_against_float64(args);
  args.l2_normalize = false;
  for (at::Tensor* x : {&args.q, &args.k}) *x = leaf(*x / std::sqrt(static_cast<double>(K)));
  check_against_float64(args);
}

TEST_CASE("strided views of fused projections give the bits of copies, with gates",
          "[delta_rule_regimes][cuda]") {
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  const int64_t HV = GENERATE(2, 4);
  CAPTURE(to_string(decay), HV);
  const int64_t T = 333;
  const DeltaRuleArgs plain =
      draw({.offsets = {0, 100, T}, .H = 2, .HV = HV, .K = 64, .V = 128, .decay = decay, .write_key = true});
  const Result expected = evaluate(delta_rule, plain);
  const auto check_same = [&](const DeltaRuleArgs& other) {
    const Result found = evaluate(delta_rule, other);
    CHECK(at::equal(found.o, expected.o));
    CHECK(at::equal(found.final_state, expected.final_state));
    for (const auto& [name, gradient] : expected.gradients) {
      INFO(name);
      CHECK(at::equal(found.gradients.at(name), gradient));
    }
  };
  check_same(plain);  // the same bits again
  const auto columns = [&](const at::Tensor& x, int64_t margin) {
    const int64_t width = x[0].numel();
    const at::Tensor buffer = at::full({T + 3, width + 2 * margin}, 1e30, x.options().requires_grad(false));
    const at::Tensor part = buffer.narrow(0, 0, T).narrow(1, margin, width);
    part.copy_(x.detach().flatten(1));
    return part.view(x.sizes()).detach().set_requires_grad(true);
  };
  for (const int64_t margin : {16, 5}) {
    DeltaRuleArgs strided = plain;
    for (at::Tensor* x :
         {&strided.q, &strided.k, &strided.v, &strided.write_key, &strided.beta, &strided.log_decay})
      *x = columns(*x, margin);
    check_same(strided);
  }
  // beta and the gate as the even and the odd columns of one projection.
  if (decay == Decay::kScalar) {
    const at::Tensor fused = at::stack({plain.log_decay.detach(), plain.beta.detach()}, 2).flatten(1);
    DeltaRuleArgs halves = plain;
    halves.log_decay = fused.slice(1, 0, 2 * HV, 2).detach().set_requires_grad(true);
    halves.beta = fused.slice(1, 1, 2 * HV, 2).detach().set_requires_grad(true);
    check_same(halves);
  }
}

TEST_CASE("thousands of sequences and heads equal float64", "[delta_rule_regimes][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  CAPTURE(to_string(decay));
  // 4,096 pairs of a sequence and a head, and 72,000, more than a grid's y dimension holds.
  check_against_float64(
      draw({.offsets = equal_offsets(128, 70), .H = 16, .HV = 32, .K = 64, .V = 64, .decay = decay}));
  check_against_float64(
      draw({.offsets = equal_offsets(4500, 3), .H = 16, .HV = 16, .K = 16, .V = 16, .decay = decay}));
}

TEST_CASE("rows beyond two to the thirty-first element are found, gates too", "[delta_rule_regimes][cuda]") {
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  CAPTURE(to_string(decay));
  const int64_t B = 17;  // 17 * 16,384 * 64 * 128 elements are above 2^31
  const int64_t T = 16384;
  const at::NoGradGuard no_grad;
  const DeltaRuleArgs one = draw(
      {.offsets = {0, T}, .H = 64, .HV = 64, .K = 128, .V = 128, .decay = decay, .initial_state = false});
  REQUIRE(delta_rule_detail::checked(one).on_kernel_path());  // ATen's path would not fit into memory
  DeltaRuleArgs all = one;
  for (at::Tensor* x : {&all.q, &all.k, &all.v, &all.beta, &all.log_decay})
    *x = x->detach()
             .unsqueeze(0)
             .expand([&] {
               std::vector<int64_t> sizes = x->sizes().vec();
               sizes.insert(sizes.begin(), B);
               return sizes;
             }())
             .flatten(0, 1);
  all.sequences = Sequences::equal(B, T, kGpu);
  const at::Tensor expected = delta_rule(one).o;
  const at::Tensor o = delta_rule(all).o;
  for (int64_t row = 0; row < B; ++row) CHECK(at::equal(o.narrow(0, row * T, T), expected));
}

TEST_CASE("a sequence of a million tokens ends as its tail from the saved state does",
          "[delta_rule_regimes][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const int64_t T = GENERATE(65535, 65536, 65537, 131073, 1048576);
  CAPTURE(to_string(decay), T);
  const at::NoGradGuard no_grad;
  const DeltaRuleArgs args = draw({.offsets = {0, T},
                                   .H = 1,
                                   .HV = 1,
                                   .K = 64,
                                   .V = 64,
                                   .decay = decay,
                                   .gate_divisor = 100,
                                   .initial_state = false});
  const DeltaRuleOutput whole = delta_rule(args);
  CHECK(at::isfinite(whole.o).all().item<bool>());
  const auto piece = [&](int64_t begin, int64_t count, const at::Tensor& state) {
    DeltaRuleArgs part = args;
    for (at::Tensor* x : {&part.q, &part.k, &part.v, &part.beta, &part.log_decay})
      if (x->defined()) *x = x->narrow(0, begin, count);
    part.initial_state = state;
    part.sequences = Sequences::equal(1, count, kGpu);
    return delta_rule(part);
  };
  const DeltaRuleOutput tail = piece(T - 64, 64, piece(0, T - 64, {}).final_state);
  CHECK(device_error(tail.o, whole.o.narrow(0, T - 64, 64)) < 1e-2);
  CHECK(device_error(tail.final_state, whole.final_state) < 1e-2);
}

}  // namespace osdn::ops::delta_rule_regimes_test
