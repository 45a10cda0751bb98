// The CUDA kernels of the delta rule with a decay by channel against float64: lengths, head sizes, regimes of
// the decay from none to beyond any anchor, packs, hard keys, and what must be exact.
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/delta_rule.h"
#include "tests/ops/delta_rule_device.h"
#include "tests/support/test.h"

namespace osdn::ops::delta_rule_channel_cuda_test {

using delta_rule_device::check_against_float64;
using delta_rule_device::Draw;
using delta_rule_device::draw;
using delta_rule_device::evaluate;
using delta_rule_device::named;
using delta_rule_test::Decay;

Draw spec_of(std::vector<int64_t> offsets, int64_t K, int64_t V) {
  return {.offsets = std::move(offsets), .H = 2, .HV = 2, .K = K, .V = V, .decay = Decay::kChannel};
}

DeltaRuleArgs with_gates(DeltaRuleArgs args, const at::Tensor& gates) {
  args.log_decay = gates.to(args.log_decay.scalar_type())
                       .expand_as(args.log_decay)
                       .contiguous()
                       .detach()
                       .set_requires_grad(true);
  return args;
}

TEST_CASE("the kernels with a decay by channel equal float64 at any length",
          "[delta_rule_channel_cuda][cuda]") {
  const int64_t length = GENERATE(1, 15, 16, 17, 63, 64, 65, 127, 1000);
  const bool write_key = GENERATE(false, true);
  const bool bf16_decay = GENERATE(false, true);
  CAPTURE(length, write_key, bf16_decay);
  Draw spec = spec_of({0, length}, 128, 128);
  spec.write_key = write_key;
  spec.decay_in_dtype = bf16_decay;
  const DeltaRuleArgs args = draw(spec);
  check_against_float64(args);
  CHECK(evaluate(delta_rule, args).gradients.at("log_decay").scalar_type() ==
        (bf16_decay ? at::kBFloat16 : at::kFloat));
}

TEST_CASE("the kernels with a decay by channel equal float64 at any head size and with grouped heads",
          "[delta_rule_channel_cuda][cuda]") {
  const auto [K, V] = GENERATE(Catch::Generators::table<int64_t, int64_t>(
      {{64, 64}, {128, 256}, {48, 80}, {16, 16}, {112, 192}, {64, 128}, {128, 64}}));
  const bool write_key = GENERATE(false, true);
  const int64_t group = GENERATE(1, 3);
  const bool bf16_decay = GENERATE(false, true);
  CAPTURE(K, V, write_key, group, bf16_decay);
  Draw spec = spec_of({0, 100, 230}, K, V);
  spec.HV = 2 * group;
  spec.write_key = write_key;
  spec.decay_in_dtype = bf16_decay;
  spec.scale = 0.7;
  check_against_float64(draw(spec));
}

TEST_CASE("the kernels with a decay by channel take keys as given", "[delta_rule_channel_cuda][cuda]") {
  DeltaRuleArgs args = draw(spec_of({0, 100, 230}, 128, 128));
  args.l2_normalize = false;
  for (at::Tensor* x : {&args.q, &args.k})
    *x = (x->detach() / std::sqrt(128.0)).detach().set_requires_grad(true);
  check_against_float64(args);
}

TEST_CASE("the kernels equal float64 in every regime of the decay by channel",
          "[delta_rule_channel_cuda][cuda]") {
  const bool write_key = GENERATE(false, true);
  const bool bf16_decay = GENERATE(false, true);
  CAPTURE(write_key, bf16_decay);
  // Many sequences: under strong decays almost all of dk is the last token's, and that one number, the
  // product of its F with the E before it; where its 128 terms happen to cancel, so do the digits of any bf16
  // form.
  std::vector<int64_t> offsets = {0};
  for (int i = 0; i < 12; ++i) offsets.push_back(offsets.back() + (i % 2 == 0 ? 70 : 160));
  Draw spec = spec_of(offsets, 128, 128);
  spec.write_key = write_key;
  spec.decay_in_dtype = bf16_decay;
  DeltaRuleArgs args = draw(spec);
  // Small, so that under strong decays the first token's gradients are not all there is.
  args.initial_state = (0.05 * args.initial_state.detach()).set_requires_grad(true);
  const at::TensorOptions fp32 = args.beta.options().requires_grad(false);
  const at::IntArrayRef shape = args.log_decay.sizes();
  const auto uniform = [&] { return at::rand(shape, fp32); };
  const auto every = [&](double value) { return at::full(shape, value, fp32); };
  const at::Tensor channel = at::arange(shape[2], fp32);
  SECTION("none") { check_against_float64(with_gates(args, every(0))); }
  SECTION("tiny") { check_against_float64(with_gates(args, -1e-4 * uniform())); }
  SECTION("up to 1") { check_against_float64(with_gates(args, -uniform())); }
  SECTION("all at the floor of -5") { check_against_float64(with_gates(args, every(-5))); }
  SECTION("up to the floor of -5") { check_against_float64(with_gates(args, -5 * uniform())); }
  SECTION("around the limit of one anchor") {
    check_against_float64(with_gates(args, -5.5 - 0.02 * uniform()));
  }
  SECTION("all at -27") { check_against_float64(with_gates(args, every(-27))); }
  SECTION("up to -27") { check_against_float64(with_gates(args, -27 * uniform())); }
  SECTION("-27 at some tokens and channels, weak elsewhere") {
    check_against_float64(with_gates(args, at::where(uniform() < 0.1, every(-27), -0.01 * uniform())));
  }
  SECTION("-27 in some channels, none in others") {
    check_against_float64(with_gates(args, at::where(channel < 40, every(-27), every(0))));
  }
  SECTION("a channel forgets all at some tokens") {
    check_against_float64(with_gates(args, at::where(uniform() < 0.02, every(-1e5), -0.1 * uniform())));
  }
  SECTION("sub-blocks with and without an anchor in turn") {
    const at::Tensor strong = at::arange(shape[0], fp32).div(16, "floor").remainder(2).view({-1, 1, 1});
    check_against_float64(with_gates(args, -0.2 * uniform() - 9 * strong * uniform()));
  }
}

TEST_CASE("the kernels with a decay by channel equal float64 in packs", "[delta_rule_channel_cuda][cuda]") {
  std::vector<int64_t> many = {0};
  for (int64_t i = 0; i < 300; ++i) many.push_back(many.back() + i * 7919 % 23);
  for (const std::vector<int64_t>& offsets :
       {std::vector<int64_t>{0, 0, 5, 5, 6, 7, 781, 1000, 1000}, many}) {
    CAPTURE(offsets.size());
    for (const bool bf16_decay : {false, true}) {
      Draw spec = spec_of(offsets, 64, 64);
      spec.write_key = true;
      spec.decay_in_dtype = bf16_decay;
      check_against_float64(draw(spec));
    }
  }
}

TEST_CASE("the kernels with a decay by channel hold where keys are correlated and writes nearly reflect",
          "[delta_rule_channel_cuda][cuda]") {
  const double strength = GENERATE(0.99, 1.8, 1.96);
  const double decay = GENERATE(0.0, 0.01);
  CAPTURE(strength, decay);
  Draw spec = spec_of({0, 512}, 128, 128);
  spec.write_key = true;
  DeltaRuleArgs args = draw(spec);
  const at::TensorOptions fp32 = args.beta.options().requires_grad(false);
  const at::Tensor keys = at::randn(args.k.sizes(), fp32) + 3 * at::randn({1, 2, 128}, fp32);
  const at::Tensor unit = keys / keys.norm(2, {-1}, true);
  args.k = unit.to(at::kBFloat16).set_requires_grad(true);
  args.write_key = unit.to(at::kBFloat16).set_requires_grad(true);
  args.beta = at::full_like(args.beta, strength).detach().set_requires_grad(true);
  check_against_float64(with_gates(args, -decay * at::rand(args.log_decay.sizes(), fp32)));
}

TEST_CASE("the first token of a sequence has no use for its decay without an initial state",
          "[delta_rule_channel_cuda][cuda]") {
  Draw spec = spec_of({0, 70, 71, 300}, 64, 64);
  spec.initial_state = false;
  spec.decay_in_dtype = GENERATE(false, true);
  const DeltaRuleArgs args = draw(spec);
  check_against_float64(args);
  const at::Tensor gradient = evaluate(delta_rule, args).gradients.at("log_decay");
  for (const int64_t token : {0, 70, 71}) CHECK(gradient.select(0, token).abs().max().item<float>() == 0);
  CHECK(gradient.select(0, 1).abs().max().item<float>() > 0);
}

TEST_CASE("gradients through one output of the decay by channel alone equal float64",
          "[delta_rule_channel_cuda][cuda]") {
  using delta_rule_test::Through;
  const Through through = GENERATE(Through::kOutput, Through::kFinalState);
  const auto run = [through](const DeltaRuleArgs& args) {
    return delta_rule_test::run(
        [&args](const DeltaRuleArgs& given) {
          return args.q.scalar_type() == at::kDouble ? delta_rule_chunked(given) : delta_rule(given);
        },
        args, through);
  };
  const DeltaRuleArgs args = draw(spec_of({0, 70, 230}, 128, 128));
  delta_rule_test::check_equal(run(args), run(delta_rule_test::to_double(args)), 1e-2);
}

TEST_CASE("the kernels with a decay by channel give the same bits again and for strided views",
          "[delta_rule_channel_cuda][cuda]") {
  Draw spec = spec_of({0, 100, 333}, 64, 128);
  spec.write_key = true;
  spec.decay_in_dtype = GENERATE(false, true);
  const DeltaRuleArgs plain = draw(spec);
  const auto first = named(evaluate(delta_rule, plain));
  const auto check_same = [&](const DeltaRuleArgs& args) {
    const auto other = named(evaluate(delta_rule, args));
    for (size_t i = 0; i < first.size(); ++i) {
      INFO(first[i].first);
      CHECK(at::equal(first[i].second, other[i].second));
    }
  };
  check_same(plain);
  for (const int64_t margin : {16, 5}) {  // readable as it lies, and not
    DeltaRuleArgs strided = plain;
    for (at::Tensor* x :
         {&strided.q, &strided.k, &strided.v, &strided.write_key, &strided.beta, &strided.log_decay}) {
      const int64_t width = (*x)[0].numel();
      const at::Tensor buffer = at::full({x->size(0) + 3, width + 2 * margin}, 1e30, x->options());
      const at::Tensor rows = buffer.detach().narrow(0, 0, x->size(0)).narrow(1, margin, width);
      rows.copy_(x->detach().flatten(1));
      *x = rows.view(x->sizes()).detach().set_requires_grad(true);
    }
    check_same(strided);
  }
}

TEST_CASE("outputs of the decay by channel do not depend on later tokens, in bits",
          "[delta_rule_channel_cuda][cuda]") {
  const int64_t T = GENERATE(2, 15, 17, 33, 63, 65, 130);
  const double strongest = GENERATE(1.0, 27.0);
  CAPTURE(T, strongest);
  Draw spec = spec_of({0, T}, 128, 128);
  spec.write_key = true;
  DeltaRuleArgs args = draw(spec);
  args.log_decay = -strongest * at::rand(args.log_decay.sizes(), args.beta.options().requires_grad(false));
  const at::NoGradGuard no_grad;
  const at::Tensor before = delta_rule(args).o;
  DeltaRuleArgs edited = args;
  for (at::Tensor* x : {&edited.q, &edited.k, &edited.v, &edited.beta, &edited.write_key}) {
    *x = x->detach().clone();
    x->select(0, T - 1).fill_(0.7);
  }
  edited.log_decay = args.log_decay.clone();
  edited.log_decay.select(0, T - 1).fill_(-0.3);
  const at::Tensor after = delta_rule(edited).o;
  CHECK(at::equal(before.narrow(0, 0, T - 1), after.narrow(0, 0, T - 1)));
  CHECK(!at::equal(before, after));
}

TEST_CASE("the kernels with a decay by channel take values beyond fp16 and zero rows",
          "[delta_rule_channel_cuda][cuda]") {
  DeltaRuleArgs args = draw(spec_of({0, 200}, 128, 128));
  SECTION("large values") {
    args.v = (args.v.detach() * 3e5).detach().set_requires_grad(true);
    args.initial_state = at::Tensor();
    check_against_float64(args);
  }
  SECTION("zero keys and queries") {
    for (at::Tensor* x : {&args.q, &args.k}) {
      *x = x->detach().clone();
      x->narrow(0, 10, 50).zero_();
      x->set_requires_grad(true);
    }
    for (const auto& [name, x] : named(evaluate(delta_rule, args))) {
      INFO(name);
      CHECK(at::isfinite(x).all().item<bool>());
    }
  }
}

}  // namespace osdn::ops::delta_rule_channel_cuda_test
