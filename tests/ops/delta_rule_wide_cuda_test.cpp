// Key heads above 128 and value heads above 256 by the CUDA kernels of the delta rule, in bf16: every output
// and gradient against the float64 chunk form on the same device.
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/delta_rule.h"
#include "ops/detail/delta_rule.h"
#include "tests/ops/delta_rule_device.h"

namespace osdn::ops::delta_rule_wide_cuda_test {

using delta_rule_device::check_against_float64;
using delta_rule_device::Draw;
using delta_rule_device::draw;
using delta_rule_device::evaluate;
using delta_rule_device::kGpu;
using delta_rule_test::Decay;
using delta_rule_test::Result;
using delta_rule_test::to_string;

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().set_requires_grad(true); }

void check_same_bits(const Result& found, const Result& expected) {
  CHECK(at::equal(found.o, expected.o));
  CHECK(at::equal(found.final_state, expected.final_state));
  for (const auto& [name, gradient] : expected.gradients) {
    INFO(name);
    CHECK(at::equal(found.gradients.at(name), gradient));
  }
}

TEST_CASE("wide keys equal float64 at every head size, with any gate and write key, in ragged packs",
          "[delta_rule_wide_cuda][cuda]") {
  const int64_t K = GENERATE(144, 192, 256);
  const int64_t V = GENERATE(16, 64, 128, 256, 512);
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const bool write_key = GENERATE(false, true);
  if (decay == Decay::kChannel && V > kernels::kDeltaRuleChannelValueSize) return;
  CAPTURE(K, V, to_string(decay), write_key);
  // A single token, a whole chunk, no token, tails.
  check_against_float64(draw({.offsets = {0, 1, 65, 65, 130, 333},
                              .H = 2,
                              .HV = write_key ? 4 : 2,
                              .K = K,
                              .V = V,
                              .decay = decay,
                              .write_key = write_key,
                              .decay_in_dtype = decay == Decay::kChannel && K != 192}));
}

TEST_CASE("wide keys equal float64 at any length, from no state and from a given one",
          "[delta_rule_wide_cuda][cuda]") {
  const int64_t length = GENERATE(1, 15, 16, 17, 63, 64, 65, 127, 1000, 2048);
  const auto [initial_state, decay] = GENERATE(Catch::Generators::table<bool, Decay>(
      {{true, Decay::kScalar}, {false, Decay::kNone}, {false, Decay::kChannel}}));
  CAPTURE(length, initial_state, to_string(decay));
  check_against_float64(draw({.offsets = {0, length},
                              .H = 8,
                              .HV = 8,
                              .K = 256,
                              .V = 256,
                              .decay = decay,
                              .write_key = initial_state,
                              .initial_state = initial_state}));
}

TEST_CASE("wide keys equal float64 as they are given, with a scale of their own",
          "[delta_rule_wide_cuda][cuda]") {
  const int64_t K = GENERATE(144, 256);
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  CAPTURE(K, to_string(decay));
  DeltaRuleArgs args = draw({.offsets = {0, 100, 230},
                             .H = 2,
                             .HV = 6,
                             .K = K,
                             .V = 96,
                             .decay = decay,
                             .write_key = true,
                             .scale = 0.7});
  args.l2_normalize = false;
  for (at::Tensor* x : {&args.q, &args.k}) *x = leaf(*x / std::sqrt(static_cast<double>(K)));
  check_against_float64(args);
}

TEST_CASE("wide keys equal float64 in a pack of hundreds of documents, and where blocks fill the device",
          "[delta_rule_wide_cuda][cuda]") {
  const bool write_key = GENERATE(false, true);
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  CAPTURE(write_key, to_string(decay));
  std::vector<int64_t> offsets = {0};
  for (int64_t i = 0; i < 300; ++i) offsets.push_back(offsets.back() + i * 7919 % 23);
  check_against_float64(draw(
      {.offsets = offsets, .H = 2, .HV = 2, .K = 192, .V = 128, .decay = decay, .write_key = write_key}));
}

TEST_CASE("wide keys equal float64 where keys are nearly parallel and gates forget much",
          "[delta_rule_wide_cuda][cuda]") {
  Draw spec{.offsets = {0, 64, 300}, .H = 2, .HV = 2, .K = 256, .V = 128};
  SECTION("keys nearly parallel") { spec.uniform = true; }
  SECTION("keys nearly parallel, write keys their own") { spec.uniform = spec.write_key = true; }
  SECTION("gates at their floor") {
    spec.decay = GENERATE(Decay::kScalar, Decay::kChannel);
    spec.gate_divisor = 0.05;
    spec.gate_floor = -5;
  }
  SECTION("gates beyond any anchor of sixteen tokens, in some channels") {
    spec.decay = Decay::kChannel;
    spec.write_key = GENERATE(false, true);
    spec.gate_divisor = 0.01;
    spec.gate_floor = -27;
  }
  SECTION("gates of zero now and then") {
    spec.decay = GENERATE(Decay::kScalar, Decay::kChannel);
    spec.gate_zero_share = 0.5;
  }
  check_against_float64(draw(spec));
}

TEST_CASE("the same call with wide keys gives the same bits, strided views those of copies",
          "[delta_rule_wide_cuda][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  CAPTURE(to_string(decay));
  const int64_t T = 333;
  const DeltaRuleArgs plain =
      draw({.offsets = {0, 100, T}, .H = 2, .HV = 4, .K = 256, .V = 256, .decay = decay, .write_key = true});
  const Result expected = evaluate(delta_rule, plain);
  check_same_bits(evaluate(delta_rule, plain), expected);
  DeltaRuleArgs strided = plain;
  for (at::Tensor* x : {&strided.q, &strided.k, &strided.v, &strided.write_key}) {
    const int64_t width = (*x)[0].numel();
    const at::Tensor buffer = at::full({T, width + 32}, 1e30, x->options().requires_grad(false));
    const at::Tensor part = buffer.narrow(1, 16, width);
    part.copy_(x->detach().flatten(1));
    *x = part.view(x->sizes()).detach().set_requires_grad(true);
  }
  check_same_bits(evaluate(delta_rule, strided), expected);
}

TEST_CASE("outputs of wide keys do not depend on later tokens, in bits", "[delta_rule_wide_cuda][cuda]") {
  const int64_t T = GENERATE(17, 63, 65, 130);
  const Decay decay = GENERATE(Decay::kScalar, Decay::kChannel);
  CAPTURE(T, to_string(decay));
  const DeltaRuleArgs args = draw({.offsets = {0, T},
                                   .H = 2,
                                   .HV = 2,
                                   .K = 256,
                                   .V = 128,
                                   .decay = decay,
                                   .write_key = true,
                                   .initial_state = false});
  DeltaRuleArgs edited = args;
  for (at::Tensor* x :
       {&edited.q, &edited.k, &edited.v, &edited.beta, &edited.write_key, &edited.log_decay}) {
    *x = x->detach().clone();
    x->select(0, T - 1).fill_(x == &edited.log_decay ? -3.0 : 0.7);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor before = delta_rule(args).o;
  const at::Tensor after = delta_rule(edited).o;
  CHECK(at::equal(before.narrow(0, 0, T - 1), after.narrow(0, 0, T - 1)));
  CHECK(!at::equal(before, after));
}

TEST_CASE("bf16 heads of up to 256 x 512 take the kernels, others ATen", "[delta_rule_wide_cuda][cuda]") {
  const auto by_kernels = [](const Draw& spec) {
    return delta_rule_detail::checked(draw(spec)).on_kernel_path();
  };
  const bool wide = kernels::delta_rule_takes_wide_keys();
  Draw spec{.offsets = {0, 4}, .H = 1, .HV = 1, .K = 256, .V = 512};
  CHECK(by_kernels(spec) == wide);
  spec.decay = Decay::kScalar;
  CHECK(by_kernels(spec) == wide);
  spec.K = 128;
  CHECK(by_kernels(spec));
  spec.decay = Decay::kChannel;
  CHECK(!by_kernels(spec));
  spec.V = 256;
  CHECK(by_kernels(spec));
  spec.K = 256;
  CHECK(by_kernels(spec) == wide);
  for (const auto& [K, V] : {std::pair<int64_t, int64_t>{272, 64}, {256, 528}, {250, 64}, {256, 60}}) {
    CAPTURE(K, V);
    CHECK(!by_kernels({.offsets = {0, 4}, .H = 1, .HV = 1, .K = K, .V = V}));
  }
  CHECK(!by_kernels({.offsets = {0, 4}, .H = 1, .HV = 1, .K = 256, .V = 256, .dtype = at::kFloat}));
}

}  // namespace osdn::ops::delta_rule_wide_cuda_test
