// Decoding by the delta rule, one token a sequence: the step kernel against the float64 recurrence and
// against the same tokens in one pass.
#include <cmath>
#include <string>
#include <vector>

#include "ops/delta_rule.h"
#include "ops/precond_scan.h"
#include "tests/ops/delta_rule_cases.h"
#include "tests/ops/precond_scan_cases.h"
#include "tests/support/poison.h"
#include "tests/support/test.h"

namespace osdn::ops::delta_rule_step_test {

using delta_rule_test::Decay;
using delta_rule_test::make;
using delta_rule_test::to_device;
using delta_rule_test::to_double;
using delta_rule_test::to_string;
using osdn::test::check_close;
using osdn::test::PoisonedMemory;

const at::Device kStepDevice(at::kCUDA, 0);

constexpr double kStepFloatError = 1e-5;  // sums over at most 256 channels in fp32
constexpr double kStepBf16Output = 4e-3;  // one rounding of the output; the state is fp32

/// The op without gradients, so that it takes the step kernel, against the token recurrence in float64 on the
/// CPU.
void check_step(const DeltaRuleArgs& args) {
  const at::NoGradGuard no_grad;
  const DeltaRuleArgs on_device = to_device(args, kStepDevice);
  const DeltaRuleOutput truth = delta_rule_ref(to_double(args));
  const PoisonedMemory poisoned;
  const DeltaRuleOutput found = delta_rule(on_device);
  const bool bf16 = args.q.scalar_type() == at::kBFloat16;
  check_close("o", found.o, truth.o, bf16 ? kStepBf16Output : kStepFloatError);
  check_close("final_state", found.final_state, truth.final_state, kStepFloatError);
}

TEST_CASE("one token a sequence equals float64 with every decay, write key, state and head size",
          "[delta_rule_step][cuda]") {
  const auto [K, V] = GENERATE(Catch::Generators::table<int64_t, int64_t>({{128, 128},
                                                                           {64, 64},
                                                                           {128, 256},
                                                                           {256, 256},
                                                                           {256, 512},
                                                                           {16, 16},
                                                                           {96, 80},
                                                                           {48, 112},
                                                                           {60, 60},
                                                                           {100, 20},
                                                                           {192, 48}}));
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kFloat);
  CAPTURE(K, V, to_string(decay), c10::toString(dtype));
  for (const bool write_key : {false, true})
    for (const bool initial_state : {false, true}) {
      DeltaRuleArgs args = make({.offsets = {0, 1, 1, 2, 3},
                                 .H = 2,
                                 .HV = write_key ? 6 : 2,
                                 .K = K,
                                 .V = V,
                                 .decay = decay,
                                 .write_key = write_key,
                                 .initial_state = initial_state,
                                 .dtype = dtype});
      check_step(args);
      args.scale = 0.7;
      args.l2_normalize = false;
      check_step(args);
    }
}

TEST_CASE("a step takes log-decays by channel in bf16 as those in fp32", "[delta_rule_step][cuda]") {
  const at::NoGradGuard no_grad;
  const DeltaRuleArgs narrow = to_device(make({.offsets = {0, 1, 1, 2, 3},
                                               .H = 2,
                                               .HV = 4,
                                               .K = 128,
                                               .V = 128,
                                               .decay = Decay::kChannel,
                                               .write_key = true,
                                               .initial_state = true,
                                               .dtype = at::kBFloat16,
                                               .decay_in_dtype = true}),
                                         kStepDevice);
  REQUIRE(narrow.log_decay.scalar_type() == at::kBFloat16);
  DeltaRuleArgs wide = narrow;
  wide.log_decay = narrow.log_decay.to(at::kFloat);
  const DeltaRuleOutput a = delta_rule(narrow);
  const DeltaRuleOutput b = delta_rule(wide);
  CHECK(at::equal(a.o, b.o));
  CHECK(at::equal(a.final_state, b.final_state));
}

TEST_CASE("one token equals float64 at many sequences and heads", "[delta_rule_step][cuda]") {
  struct Row {
    int64_t S, H, D;
    double scale;
  };
  // The peer's decoding rows, and more (sequence, head) pairs than a grid dimension of 65,535.
  for (const auto& [S, H, D, scale] :
       {Row{16, 16, 128, 0.1}, Row{32, 8, 64, 1.0}, Row{7, 32, 128, 0.5}, Row{1100, 64, 16, 1.0}}) {
    CAPTURE(S, H, D);
    std::vector<int64_t> offsets;
    for (int64_t i = 0; i <= S; ++i) offsets.push_back(i);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      DeltaRuleArgs args = make({.offsets = offsets,
                                 .H = H,
                                 .HV = H,
                                 .K = D,
                                 .V = D,
                                 .decay = Decay::kChannel,
                                 .initial_state = true,
                                 .dtype = dtype});
      args.scale = scale;
      check_step(args);
    }
  }
}

TEST_CASE("tokens one by one give what one pass over all of them gives", "[delta_rule_step][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kFloat);
  CAPTURE(to_string(decay), c10::toString(dtype));
  const int64_t S = 3;
  const int64_t T = 40;
  const int64_t prefix = 30;
  const at::NoGradGuard no_grad;
  // The keys of a preconditioner that learns from token to token: d is carried beside S.
  DeltaRuleArgs all = to_device(make({.offsets = {0, T, 2 * T, 3 * T},
                                      .H = 2,
                                      .HV = 2,
                                      .K = 64,
                                      .V = 64,
                                      .decay = decay,
                                      .dtype = dtype}),
                                kStepDevice);
  PrecondScanArgs scan{.k = all.k, .beta = all.beta, .sequences = all.sequences};
  scan.initial_scale.value = at::ones({2, 64}, all.beta.options());
  const PrecondScanOutput keys = precond_scan(scan);
  all.write_key = keys.write_key;
  const DeltaRuleOutput whole = delta_rule(all);

  const auto rows = [&](const at::Tensor& x, int64_t begin, int64_t count) {
    if (!x.defined()) return x;
    return x.unflatten(0, {S, T}).narrow(1, begin, count).flatten(0, 1).contiguous();
  };
  at::Tensor state;
  at::Tensor d;
  std::vector<at::Tensor> outputs;  // [S, count, HV, V]
  for (int64_t begin = 0; begin < T; begin += begin == 0 ? prefix : 1) {
    const int64_t count = begin == 0 ? prefix : 1;
    DeltaRuleArgs piece = all;
    for (at::Tensor* x : {&piece.q, &piece.k, &piece.v, &piece.beta, &piece.log_decay})
      *x = rows(*x, begin, count);
    piece.sequences = Sequences::equal(S, count, kStepDevice);
    PrecondScanArgs part = scan;
    part.k = piece.k;
    part.beta = piece.beta;
    part.carried = d;
    part.sequences = piece.sequences;
    const PrecondScanOutput written = precond_scan(part);
    piece.write_key = written.write_key;
    piece.initial_state = state;
    const DeltaRuleOutput out = delta_rule(piece);
    state = out.final_state;
    d = written.final_d;
    outputs.push_back(out.o.unflatten(0, {S, count}));
  }
  // The chunk form in bf16 rounds its operands, the step does not.
  const double tolerance = dtype == at::kBFloat16 ? 1e-2 : kStepFloatError;
  check_close("o", at::cat(outputs, 1).flatten(0, 1), whole.o, tolerance);
  check_close("final_state", state, whole.final_state, tolerance);
  check_close("final_d", d, keys.final_d, kStepFloatError);
}

TEST_CASE("a step decays first, then corrects: beta 0, 1 and 2 do exactly what they say",
          "[delta_rule_step][cuda]") {
  DeltaRuleArgs args = to_device(make({.offsets = {0, 1, 2},
                                       .H = 1,
                                       .HV = 1,
                                       .K = 32,
                                       .V = 16,
                                       .decay = Decay::kScalar,
                                       .initial_state = true,
                                       .dtype = at::kFloat}),
                                 kStepDevice);
  const at::NoGradGuard no_grad;
  args.q = args.k;
  args.scale = 1.0;
  const at::Tensor decayed = args.initial_state * args.log_decay.exp().view({2, 1, 1, 1});
  args.beta = at::zeros_like(args.beta);
  check_close("state with beta 0", delta_rule(args).final_state, decayed, 1e-7);
  args.beta = at::ones_like(args.beta);
  check_close("value read back with beta 1", delta_rule(args).o, args.v, kStepFloatError);
  args.beta = at::full_like(args.beta, 2);
  args.v = at::zeros_like(args.v);
  check_close("norm of the reflection with beta 2", delta_rule(args).final_state.norm(), decayed.norm(),
              kStepFloatError);
  // Error before decay would give 0.5.
  const auto one = [](double x) {
    return at::full({1, 1, 4}, x, at::TensorOptions().dtype(at::kFloat).device(kStepDevice));
  };
  DeltaRuleArgs order{.q = one(0.5),
                      .k = one(0.5),
                      .v = one(1),
                      .beta = at::ones({1, 1}, one(1).options()),
                      .log_decay = at::full({1, 1}, std::log(0.5), one(1).options()),
                      .initial_state = at::full({1, 1, 4, 4}, 0.5, one(1).options()),
                      .sequences = Sequences::equal(1, 1, kStepDevice),
                      .scale = 1.0,
                      .l2_normalize = false};
  check_close("o", delta_rule(order).o, one(1), 1e-6);
}

TEST_CASE("a step reads strided views like copies, nothing behind them, and repeats its bits",
          "[delta_rule_step][cuda]") {
  const int64_t K = GENERATE(48, 60, 96, 100, 192);
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kFloat);
  CAPTURE(K);
  const int64_t S = 5;
  const at::NoGradGuard no_grad;
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i <= S; ++i) offsets.push_back(i);
  const DeltaRuleArgs plain = to_device(make({.offsets = offsets,
                                              .H = 2,
                                              .HV = 2,
                                              .K = K,
                                              .V = 20,
                                              .decay = Decay::kChannel,
                                              .write_key = true,
                                              .initial_state = true,
                                              .dtype = dtype}),
                                        kStepDevice);
  const auto view_of = [&](const at::Tensor& x) {
    at::Tensor buffer = at::full({S + 1, x[0].numel() + 7}, 1e30, x.options());
    buffer.narrow(0, 0, S).narrow(1, 3, x[0].numel()).copy_(x.flatten(1));
    return buffer.narrow(0, 0, S).narrow(1, 3, x[0].numel()).view(x.sizes());
  };
  DeltaRuleArgs strided = plain;
  for (at::Tensor* x : {&strided.q, &strided.k, &strided.v, &strided.write_key, &strided.beta,
                        &strided.log_decay, &strided.initial_state})
    *x = view_of(*x);
  strided.q = plain.q.transpose(0, 1).contiguous().transpose(0, 1);
  const DeltaRuleOutput a = delta_rule(plain);
  const DeltaRuleOutput again = delta_rule(plain);
  const DeltaRuleOutput b = delta_rule(strided);
  CHECK(at::equal(a.o, again.o));
  CHECK(at::equal(a.final_state, again.final_state));
  CHECK(at::equal(a.o, b.o));
  CHECK(at::equal(a.final_state, b.final_state));
}

TEST_CASE("a state that may be written over is, with the bits of one written beside",
          "[delta_rule_step][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const at::NoGradGuard no_grad;
  DeltaRuleArgs args = to_device(make({.offsets = {0, 1, 1, 2, 3},
                                       .H = 2,
                                       .HV = 4,
                                       .K = 128,
                                       .V = 128,
                                       .decay = decay,
                                       .write_key = true,
                                       .initial_state = true,
                                       .dtype = at::kBFloat16}),
                                 kStepDevice);
  const at::Tensor before = args.initial_state.clone();
  const DeltaRuleOutput beside = delta_rule(args);
  CHECK(at::equal(args.initial_state, before));
  CHECK(!at::equal(beside.final_state, before));
  args.overwrite_initial_state = true;
  const DeltaRuleOutput over = delta_rule(args);
  CHECK(over.final_state.data_ptr() == args.initial_state.data_ptr());
  CHECK(at::equal(over.o, beside.o));
  CHECK(at::equal(over.final_state, beside.final_state));
  // A state that the kernel cannot take as it lies is copied first and stays.
  args.initial_state = before.transpose(2, 3);
  const DeltaRuleOutput transposed = delta_rule(args);
  CHECK(transposed.final_state.data_ptr() != args.initial_state.data_ptr());
  CHECK(at::equal(args.initial_state, before.transpose(2, 3)));
}

TEST_CASE("a step stays finite at zero keys and decays of nothing and everything",
          "[delta_rule_step][cuda]") {
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  for (const double gate : {0.0, -1e-6, -5.0, -27.631, -1000.0, -1e6}) {
    CAPTURE(to_string(decay), gate);
    DeltaRuleArgs args = make({.offsets = {0, 1, 2},
                               .H = 1,
                               .HV = 1,
                               .K = 64,
                               .V = 32,
                               .decay = decay,
                               .initial_state = true,
                               .dtype = at::kFloat});
    args.log_decay = at::full_like(args.log_decay, gate);
    args.k = args.k.detach().clone();
    args.k[1].zero_();
    check_step(args);
  }
}

}  // namespace osdn::ops::delta_rule_step_test
