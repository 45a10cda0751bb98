// The CUDA kernels of the delta rule against the float64 chunk form on the same device, which
// delta_rule_test.cpp proves against the token recurrence.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ops/delta_rule.h"
#include "ops/detail/delta_rule.h"
#include "tests/ops/delta_rule_cases.h"
#include "tests/ops/delta_rule_device.h"
#include "tests/ops/delta_rule_rounded.h"
#include "tests/support/test.h"

namespace osdn::ops::delta_rule_cuda_test {

using namespace delta_rule_test;  // the cases
using delta_rule_device::PortableKernels;

const at::Device kDevice(at::kCUDA, 0);
constexpr double kBf16Error = 1e-2;  // relative, of bf16 operands with fp32 sums

DeltaRuleArgs on_device(Spec spec) {
  spec.dtype = at::kBFloat16;
  return to_device(make(spec), kDevice);
}

DeltaRuleOutput chunked(const DeltaRuleArgs& args) { return delta_rule_chunked(args); }

/// The fast and the portable kernels, their outputs poisoned, against the float64 chunk form: at most
/// `tolerance` away, or what rounding every operand to bf16 costs by itself and half of that more.
void check_against_float64(const DeltaRuleArgs& args, double tolerance, Through through = Through::kBoth) {
  const Result expected = run(chunked, to_double(args), through);
  Result rounded;  // made where it is needed
  const auto check = [&](const std::string& name, const at::Tensor& actual, const at::Tensor& truth,
                         const auto& of_rounded) {
    double allowed = tolerance;
    if (osdn::test::relative_rms(actual, truth) > tolerance) {
      if (!rounded.o.defined()) rounded = run(delta_rule_rounded::chunk_form, args, through);
      const double reference = osdn::test::relative_rms(of_rounded(), truth);
      if (std::isfinite(reference)) allowed = std::max(tolerance, 1.5 * reference);
    }
    osdn::test::check_close(name, actual, truth, allowed);
  };
  for (const bool portable : {false, true}) {
    CAPTURE(portable);
    const PortableKernels kernels(portable);
    const Result actual = [&] {
      const osdn::test::PoisonedMemory poisoned;
      return run(delta_rule, args, through);
    }();
    check("o", actual.o, expected.o, [&] { return rounded.o; });
    check("final_state", actual.final_state, expected.final_state, [&] { return rounded.final_state; });
    for (const auto& [name, gradient] : expected.gradients)
      check("d" + name, actual.gradients.at(name), gradient,
            [&, of = name] { return rounded.gradients.at(of); });
  }
}

TEST_CASE("the kernels equal float64 in value and every gradient at any length", "[delta_rule_cuda][cuda]") {
  const int64_t length = GENERATE(1, 15, 16, 17, 63, 64, 65, 127, 1000, 2048, 4097);
  const bool write_key = GENERATE(false, true);
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar);
  CAPTURE(length, write_key, to_string(decay));
  check_against_float64(on_device({.offsets = {0, length},
                                   .H = 8,
                                   .HV = 8,
                                   .K = 128,
                                   .V = 128,
                                   .decay = decay,
                                   .write_key = write_key,
                                   .initial_state = true}),
                        kBf16Error);
}

TEST_CASE("the kernels equal float64 with any decay a token, from none to a full reset",
          "[delta_rule_cuda][cuda]") {
  const auto [name, of] =
      GENERATE(Catch::Generators::table<std::string, std::function<at::Tensor(const at::Tensor&)>>(
          {{"none", [](const at::Tensor& u) { return u * 0.0; }},
           {"tiny", [](const at::Tensor& u) { return u * -1e-4; }},
           {"the gate's floor", [](const at::Tensor& u) { return u * 0.0 - 5.0; }},
           {"a reset now and then", [](const at::Tensor& u) { return at::where(u < 0.05, -27.0, -0.1 * u); }},
           {"beyond fp32", [](const at::Tensor& u) { return at::where(u < 0.05, -1e4, -0.1 * u); }}}));
  const bool write_key = GENERATE(false, true);
  CAPTURE(name, write_key);
  DeltaRuleArgs args = on_device({.offsets = {0, 100, 333},
                                  .H = 1,
                                  .HV = 2,
                                  .K = 128,
                                  .V = 256,
                                  .decay = Decay::kScalar,
                                  .write_key = write_key,
                                  .initial_state = true});
  at::manual_seed(5);
  args.log_decay = of(at::rand_like(args.log_decay)).to(at::kFloat).detach().set_requires_grad(true);
  check_against_float64(args, kBf16Error);
}

TEST_CASE("the kernels equal float64 at any head size, with grouped heads, own scale and keys as given",
          "[delta_rule_cuda][cuda]") {
  const auto [K, V] = GENERATE(Catch::Generators::table<int64_t, int64_t>(
      {{64, 64}, {128, 256}, {16, 16}, {32, 48}, {96, 80}, {112, 192}, {64, 128}, {128, 64}}));
  const bool write_key = GENERATE(false, true);
  const int64_t group = GENERATE(1, 3);
  const bool normalize = GENERATE(true, false);
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar);
  CAPTURE(K, V, write_key, group, normalize, to_string(decay));
  DeltaRuleArgs args = on_device({.offsets = {0, 100, 230},
                                  .H = 2,
                                  .HV = 2 * group,
                                  .K = K,
                                  .V = V,
                                  .decay = decay,
                                  .write_key = write_key,
                                  .initial_state = true});
  args.scale = 0.7;
  args.l2_normalize = normalize;
  if (!normalize) {
    for (at::Tensor* x : {&args.q, &args.k})
      *x = (x->detach() / std::sqrt(static_cast<double>(K))).detach().set_requires_grad(true);
  }
  check_against_float64(args, kBf16Error);
}

TEST_CASE("the kernels equal float64 through either output alone", "[delta_rule_cuda][cuda]") {
  for (const Decay decay : {Decay::kNone, Decay::kScalar}) {
    const DeltaRuleArgs args = on_device({.offsets = {0, 70, 300},
                                          .H = 2,
                                          .HV = 2,
                                          .K = 128,
                                          .V = 128,
                                          .decay = decay,
                                          .write_key = true,
                                          .initial_state = true});
    for (const Through through : {Through::kOutput, Through::kFinalState})
      check_against_float64(args, kBf16Error, through);
  }
}

TEST_CASE("the kernels equal float64 in packs of odd, empty and a thousand documents",
          "[delta_rule_cuda][cuda]") {
  std::vector<int64_t> thousand = {0};
  for (int64_t i = 0; i < 1000; ++i) thousand.push_back(thousand.back() + i * 7919 % 23);
  const std::vector<int64_t> ones = [] {
    std::vector<int64_t> offsets(201);
    for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
    return offsets;
  }();
  for (const std::vector<int64_t>& offsets :
       {std::vector<int64_t>{0, 0, 5, 5, 781, 2048, 2048}, ones, {0, 781, 2048}, {0, 64, 128}, thousand}) {
    for (const Decay decay : {Decay::kNone, Decay::kScalar}) {
      CAPTURE(offsets.size(), to_string(decay));
      check_against_float64(on_device({.offsets = offsets,
                                       .H = 2,
                                       .HV = 2,
                                       .K = 128,
                                       .V = 128,
                                       .decay = decay,
                                       .write_key = true,
                                       .initial_state = true}),
                            kBf16Error);
    }
  }
}

TEST_CASE("a pack of empty documents has no output and keeps its states on the device",
          "[delta_rule_cuda][cuda]") {
  const DeltaRuleArgs args =
      on_device({.offsets = {0, 0, 0}, .H = 1, .HV = 2, .K = 64, .V = 64, .initial_state = true});
  const Result result = run(delta_rule, args);
  CHECK(result.o.numel() == 0);
  CHECK(at::equal(result.final_state, args.initial_state.detach()));
  CHECK(at::equal(result.gradients.at("initial_state"), final_weights(result.final_state).to(at::kFloat)));
}

TEST_CASE("the same call of the kernels gives the same bits, strided views those of contiguous copies",
          "[delta_rule_cuda][cuda]") {
  const int64_t T = 333;
  const DeltaRuleArgs plain = on_device({.offsets = {0, 100, T},
                                         .H = 2,
                                         .HV = 2,
                                         .K = 64,
                                         .V = 128,
                                         .decay = Decay::kScalar,
                                         .write_key = true,
                                         .initial_state = true});
  const auto column_view = [](const at::Tensor& x, int64_t margin) {
    const int64_t width = x[0].numel();
    at::Tensor buffer = at::full({T + 3, width + 2 * margin}, 1e30, x.options());
    buffer.narrow(0, 0, T).narrow(1, margin, width).copy_(x.detach().flatten(1));
    return buffer.narrow(0, 0, T).narrow(1, margin, width).view(x.sizes()).detach().set_requires_grad(true);
  };
  const Result first = run(delta_rule, plain);
  const auto check_same = [&](const Result& other) {
    CHECK(at::equal(first.o, other.o));
    CHECK(at::equal(first.final_state, other.final_state));
    for (const auto& [name, gradient] : first.gradients) CHECK(at::equal(gradient, other.gradients.at(name)));
  };
  check_same(run(delta_rule, plain));
  for (const int64_t margin : {16, 5}) {  // readable as it lies, and not
    DeltaRuleArgs strided = plain;
    for (at::Tensor* x : {&strided.q, &strided.k, &strided.v, &strided.write_key, &strided.beta})
      *x = column_view(*x, margin);
    check_same(run(delta_rule, strided));
  }
  DeltaRuleArgs transposed = plain;
  transposed.q = plain.q.detach().transpose(0, 1).contiguous().transpose(0, 1).set_requires_grad(true);
  check_same(run(delta_rule, transposed));
}

TEST_CASE("gradients of the kernels scale with what comes in, down to 1e-9, bit by bit",
          "[delta_rule_cuda][cuda]") {
  const bool portable = GENERATE(false, true);
  CAPTURE(portable);
  const PortableKernels kernels(portable);
  const DeltaRuleArgs args = on_device({.offsets = {0, 70, 300},
                                        .H = 2,
                                        .HV = 2,
                                        .K = 128,
                                        .V = 128,
                                        .decay = Decay::kScalar,
                                        .write_key = true,
                                        .initial_state = true});
  std::vector<at::Tensor> leaves;
  for (const auto& [name, x] : inputs(args)) leaves.push_back(x);
  const DeltaRuleOutput out = delta_rule(args);
  const auto gradients = [&](double scale) {
    return torch::autograd::grad({out.o, out.final_state}, leaves,
                                 {(output_weights(out.o) * scale).to(at::kBFloat16),
                                  (final_weights(out.final_state) * scale).to(at::kFloat)},
                                 true);
  };
  const auto of_one = gradients(1.0);
  const auto of_little = gradients(0x1p-30);
  for (size_t i = 0; i < leaves.size(); ++i) CHECK(at::equal(of_little[i] * 0x1p30, of_one[i]));
}

TEST_CASE("the kernels' outputs do not depend on later tokens, in bits", "[delta_rule_cuda][cuda]") {
  const int64_t T = GENERATE(15, 17, 33, 63, 65, 130);
  CAPTURE(T);
  const DeltaRuleArgs args = on_device(
      {.offsets = {0, T}, .H = 2, .HV = 2, .K = 128, .V = 128, .decay = Decay::kScalar, .write_key = true});
  const at::NoGradGuard no_grad;
  const at::Tensor before = delta_rule(args).o;
  DeltaRuleArgs edited = args;
  for (at::Tensor* x : {&edited.q, &edited.k, &edited.v, &edited.beta, &edited.write_key}) {
    *x = x->detach().clone();
    x->select(0, T - 1).fill_(0.7);
  }
  edited.log_decay = args.log_decay.detach().clone();
  edited.log_decay.select(0, T - 1).fill_(-3.0);
  const at::Tensor after = delta_rule(edited).o;
  CHECK(at::equal(before.narrow(0, 0, T - 1), after.narrow(0, 0, T - 1)));
  CHECK(!at::equal(before, after));
}

TEST_CASE("the kernels hold where keys repeat and every write nearly reflects", "[delta_rule_cuda][cuda]") {
  // Strength beta s of a write and the error of o that fp16 in the solve leaves there
  // (docs/ops/delta_rule.md).
  const auto [strength, bound] =
      GENERATE(Catch::Generators::table<double, double>({{0.99, 0.014}, {1.78, 0.041}, {1.96, 0.060}}));
  CAPTURE(strength);
  const bool portable = GENERATE(false, true);
  CAPTURE(portable);
  const PortableKernels kernels(portable);
  std::vector<double> errors;
  for (int seed = 0; seed < 8; ++seed) {
    at::manual_seed(seed);
    const int64_t T = 2048;
    const at::TensorOptions bf16 = at::TensorOptions().dtype(at::kBFloat16).device(kDevice);
    const at::Tensor one = at::randn({1, 1, 128}, bf16.dtype(at::kFloat));
    const at::Tensor key = (one / one.norm()).to(at::kBFloat16).expand({T, 1, 128}).contiguous();
    const DeltaRuleArgs args{.q = at::randn({T, 1, 128}, bf16),
                             .k = key,
                             .v = at::randn({T, 1, 128}, bf16),
                             .beta = at::full({T, 1}, strength, bf16.dtype(at::kFloat)),
                             .write_key = key,
                             .sequences = Sequences::equal(1, T, kDevice)};
    const at::NoGradGuard no_grad;
    errors.push_back(test::relative_rms(delta_rule(args).o, chunked(to_double(args)).o));
  }
  std::sort(errors.begin(), errors.end());
  CAPTURE(errors);
  CHECK(0.5 * (errors[3] + errors[4]) <= bound);
}

TEST_CASE("the kernels take values beyond the range of fp16, zero rows and idle writes",
          "[delta_rule_cuda][cuda]") {
  SECTION("large values") {
    DeltaRuleArgs args =
        on_device({.offsets = {0, 200}, .H = 2, .HV = 2, .K = 128, .V = 128, .write_key = true});
    args.v = (args.v.detach() * 3e5).detach().set_requires_grad(true);
    check_against_float64(args, kBf16Error);
  }
  SECTION("zero keys and queries") {
    DeltaRuleArgs args = on_device({.offsets = {0, 200}, .H = 2, .HV = 2, .K = 128, .V = 128});
    for (at::Tensor* x : {&args.q, &args.k}) {
      *x = x->detach().clone();
      x->narrow(0, 10, 50).zero_();
      x->set_requires_grad(true);
    }
    const Result result = run(delta_rule, args);
    for (const auto& [name, gradient] : result.gradients) CHECK(at::isfinite(gradient).all().item<bool>());
    CHECK(at::isfinite(result.o).all().item<bool>());
  }
  SECTION("beta zero and one") {
    DeltaRuleArgs args =
        on_device({.offsets = {0, 130}, .H = 1, .HV = 1, .K = 64, .V = 64, .initial_state = true});
    args.beta = at::zeros_like(args.beta);
    CHECK(at::equal(delta_rule(args).final_state, args.initial_state));
  }
}

TEST_CASE("the kernels find their rows beyond two to the thirty-first element", "[delta_rule_cuda][cuda]") {
  const int64_t B = 17;
  const int64_t T = 16384;
  const int64_t H = 64;
  at::manual_seed(3);
  const at::TensorOptions bf16 = at::TensorOptions().dtype(at::kBFloat16).device(kDevice);
  const auto random = [&](int64_t heads, int64_t size) { return at::randn({T, heads, size}, bf16); };
  const DeltaRuleArgs one{.q = random(H, 128),
                          .k = random(H, 128),
                          .v = random(H, 128),
                          .beta = at::rand({T, H}, bf16.dtype(at::kFloat)),
                          .sequences = Sequences::equal(1, T, kDevice)};
  const auto copies = [B](const at::Tensor& x) {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.insert(sizes.begin(), B);
    return x.unsqueeze(0).expand(sizes).reshape([&] {
      sizes.erase(sizes.begin());
      sizes[0] *= B;
      return sizes;
    }());
  };
  const DeltaRuleArgs all{.q = copies(one.q),
                          .k = copies(one.k),
                          .v = copies(one.v),
                          .beta = copies(one.beta),
                          .sequences = Sequences::equal(B, T, kDevice)};
  const at::NoGradGuard no_grad;
  const at::Tensor expected = delta_rule(one).o;
  const at::Tensor o = delta_rule(all).o;
  for (int64_t row = 0; row < B; ++row) CHECK(at::equal(o.narrow(0, row * T, T), expected));
}

}  // namespace osdn::ops::delta_rule_cuda_test
