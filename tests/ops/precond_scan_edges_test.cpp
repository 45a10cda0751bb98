// The CUDA kernels of the preconditioner scan at the edges: lengths, packs, layouts, what lies behind the
// buffers, degenerate keys, statistics. Against the float64 loops of the CPU over the same rounded keys.
#include <algorithm>
#include <limits>
#include <vector>

#include "ops/precond_scan.h"
#include "tests/ops/precond_scan_cases.h"
#include "tests/support/poison.h"
#include "tests/support/test.h"

namespace osdn::ops::precond_scan_edges_test {

using namespace precond_scan_test;  // the cases
using osdn::test::check_close;
using osdn::test::PoisonedMemory;

const at::Device kGpu(at::kCUDA, 0);
constexpr double kHalf = 1.5e-2;  // of bf16 gradients of keys

/// The float64 loops over unit keys rounded to bf16, as the op rounds them; the gradient passes the rounding.
PrecondScanOutput over_rounded_keys(const PrecondScanArgs& args) {
  PrecondScanArgs rounded = args;
  rounded.k = args.k * at::rsqrt(args.k.square().sum(-1, true) + 1e-6);
  rounded.k = rounded.k + (rounded.k.to(at::kBFloat16).to(at::kDouble) - rounded.k).detach();
  rounded.options.l2_normalize = false;
  return precond_scan(rounded);
}

Result on_gpu(const PrecondScanArgs& args) {
  const PoisonedMemory poisoned;
  return run(precond_scan, to_device(args, kGpu));
}

/// Larger of `floor` and 1.5 times the error of the CPU's loops on the same bf16 keys: where the clip cuts
/// off most of a gradient, rounding decides for single channels which side of it they are on.
void check_against_float64(const PrecondScanArgs& args, double floor) {
  const Result truth = run(over_rounded_keys, to_double(args));
  const Result cpu = run(precond_scan, args);
  const Result gpu = on_gpu(args);
  const auto check = [floor](const std::string& name, const at::Tensor& found, const at::Tensor& yardstick,
                             const at::Tensor& expected) {
    check_close(name, found, expected, std::max(floor, 1.5 * test::relative_rms(yardstick, expected)));
  };
  check("write_key", gpu.write_key, cpu.write_key, truth.write_key);
  check("final_d", gpu.final_d, cpu.final_d, truth.final_d);
  for (const auto& [name, gradient] : truth.gradients)
    check("d" + name, gpu.gradients.at(name), cpu.gradients.at(name), gradient);
}

TEST_CASE("the scan kernels equal float64 at every length", "[precond_scan_edges][cuda]") {
  for (const int64_t length : {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 500, 1000, 2048, 4097})
    for (const Retention retention : {Retention::kNone, Retention::kPerHead, Retention::kPerChannel}) {
      if (length > 500 && retention == Retention::kPerChannel) continue;
      CAPTURE(length, static_cast<int>(retention));
      check_against_float64(make({.offsets = {0, length},
                                  .H = 1,
                                  .HV = 2,
                                  .K = 128,
                                  .retention = retention,
                                  .dtype = at::kBFloat16}),
                            kHalf);
    }
}

TEST_CASE(
    "the scan kernels equal float64 with correlated keys, large steps and the clip always, sometimes, never",
    "[precond_scan_edges][cuda]") {
  struct Box {
    double lo, hi, eta;
  };
  for (const Box& box : {Box{0.999, 1.001, 2.0}, Box{2.0 / 3, 1.5, 1.0}, Box{2.0 / 3, 1.5, 2.0},
                         Box{0.0, 2.0, 2.0}, Box{0.0, 7.5, 0.1}, Box{0.0, 1e9, 1.0}, Box{-1.0, 1.0, 1.0}})
    for (const bool correlated : {false, true})
      for (const HypergradientRule rule : {HypergradientRule::kBetaAware, HypergradientRule::kBetaFree}) {
        if (rule == HypergradientRule::kBetaFree && box.eta > 1) continue;
        CAPTURE(box.lo, box.hi, box.eta, correlated, static_cast<int>(rule));
        Spec spec{.offsets = {0, 300, 301}, .H = 1, .HV = 2, .K = 128, .dtype = at::kBFloat16};
        spec.options.box_min = box.lo;
        spec.options.box_max = box.hi;
        spec.options.step_size = box.eta;
        spec.options.rule = rule;
        PrecondScanArgs args = make(spec);
        if (correlated) {  // one direction with spikes, and a little else
          const at::NoGradGuard no_grad;
          const at::Tensor spikes = at::arange(128, at::kFloat).mul(-0.1).exp();
          args.k.copy_(spikes + 0.05 * args.k.to(at::kFloat));
          args.beta.mul_(0.1).add_(0.9);
        }
        check_against_float64(args, kHalf);
      }
}

TEST_CASE("gradients of every size pass the reverse scan alike", "[precond_scan_edges][cuda]") {
  // Powers of two leave the bits of fp32 arithmetic alone.
  const PrecondScanArgs args = to_device(make({.offsets = {0, 70},
                                               .H = 1,
                                               .HV = 1,
                                               .K = 128,
                                               .retention = Retention::kPerHead,
                                               .dtype = at::kBFloat16}),
                                         kGpu);
  const auto gradients = [&](double scale) {
    const PrecondScanOutput out = precond_scan(args);
    at::Tensor upstream = weights_like(out.write_key, 1) * scale;
    upstream.narrow(0, 20, 20).mul_(1.0 / (1 << 20));
    return torch::autograd::grad(
        {out.write_key, out.final_d}, {args.k, args.beta, args.retention},
        {upstream.to(at::kBFloat16), (weights_like(out.final_d, 2) * scale).to(at::kFloat)});
  };
  const auto plain = gradients(1);
  for (const double scale : {0x1p-60, 0x1p40})
    for (size_t i = 0; i < plain.size(); ++i)
      check_close("gradient", gradients(scale)[i].to(at::kDouble) / scale, plain[i].to(at::kDouble), 1e-5);
  for (const at::Tensor& gradient : gradients(0)) CHECK(gradient.abs().max().item<double>() == 0);
}

TEST_CASE("in a pack every document has the bits of its own run", "[precond_scan_edges][cuda]") {
  std::vector<int64_t> many = {0};
  for (int64_t i = 0; i < 1000; ++i) many.push_back(many.back() + i * 7919 % 7);
  for (const std::vector<int64_t>& offsets : {std::vector<int64_t>{0, 0, 5, 5, 781, 2048, 2048},
                                              {0, 1, 2, 3, 4},
                                              {0, 781, 2048},
                                              {0, 64, 128},
                                              {0, 0},
                                              many}) {
    const PrecondScanArgs args = to_device(make({.offsets = offsets,
                                                 .H = 1,
                                                 .HV = 2,
                                                 .K = 64,
                                                 .retention = Retention::kPerHead,
                                                 .dtype = at::kBFloat16}),
                                           kGpu);
    const PoisonedMemory poisoned;
    const auto upstream = [](const at::Tensor& x) { return weights_like(x, 1).to(x.scalar_type()); };
    const PrecondScanOutput out = precond_scan(args);
    const at::Tensor dy = upstream(out.write_key);
    const auto packed = torch::autograd::grad({out.write_key}, {args.k, args.beta, args.retention}, {dy});
    for (size_t s = 0; s + 1 < offsets.size(); s += 1 + s / 20) {
      const int64_t length = offsets[s + 1] - offsets[s];
      CAPTURE(s, length);
      const at::Tensor last = out.final_d[static_cast<int64_t>(s)];
      if (length == 0) {
        CHECK(at::equal(last, args.initial_scale.value.clamp(2.0 / 3, 1.5)));
        continue;
      }
      PrecondScanArgs alone = only(args, offsets[s], length, {});
      alone.sequences = Sequences::equal(1, length, kGpu);
      const PrecondScanOutput own = precond_scan(alone);
      CHECK(at::equal(own.write_key, out.write_key.narrow(0, offsets[s], length)));
      CHECK(at::equal(own.final_d[0], last));
      const auto grads = torch::autograd::grad({own.write_key}, {alone.k, alone.beta, alone.retention},
                                               {dy.narrow(0, offsets[s], length)});
      for (size_t i = 0; i < grads.size(); ++i)
        CHECK(at::equal(grads[i], packed[i].narrow(0, offsets[s], length)));
    }
  }
}

TEST_CASE("inputs in any layout, with anything behind them, give the bits of contiguous ones",
          "[precond_scan_edges][cuda]") {
  const int64_t N = 85;
  const int64_t H = 2;
  const int64_t K = GENERATE(48, 128);
  at::manual_seed(3);
  const at::TensorOptions options = at::TensorOptions(kGpu).dtype(at::kBFloat16);
  // Behind the tokens in use lie rows of 1e30.
  const at::Tensor fused = at::full({N + 40, 3 * H * K}, 1e30, options);
  fused.narrow(0, 0, N).normal_();
  const at::Tensor gates = at::full({N + 40, 2 * H}, 1e30, options.dtype(at::kFloat));
  gates.narrow(0, 0, N).uniform_();
  const at::Tensor turned = at::full({H, N + 40, K}, 1e30, options);
  turned.narrow(1, 0, N).normal_();
  for (const at::Tensor& k : {fused.narrow(1, H * K, H * K).view({N + 40, H, K}).narrow(0, 0, N),
                              turned.transpose(0, 1).narrow(0, 0, N),
                              fused.narrow(1, 1, H * K).unflatten(1, {H, K}).narrow(0, 0, N),
                              fused.narrow(1, 0, K).unsqueeze(1).expand({N + 40, H, K}).narrow(0, 0, N)})
    for (const bool strided : {false, true}) {
      std::vector<at::Tensor> results[2];
      for (const bool contiguous : {false, true}) {
        const PoisonedMemory poisoned;
        const auto given = [&](const at::Tensor& x) {
          return (contiguous ? x.contiguous() : x).detach().set_requires_grad(true);
        };
        PrecondScanArgs args;
        args.k = given(k);
        args.beta = given(gates.slice(1, 0, 2 * H, 2).narrow(0, 0, N));
        args.retention = given(gates.slice(1, 1, 2 * H, 2).narrow(0, 0, N));
        args.initial_scale.value = at::ones({H, K}, options.dtype(at::kFloat)).set_requires_grad(true);
        args.sequences = Sequences::make({0, 33, N}, kGpu);
        const PrecondScanOutput out = precond_scan(args);
        const at::Tensor dy = strided ? k : at::ones({1, 1, 1}, options).expand({N, H, K});
        results[contiguous] = {out.write_key, out.final_d};
        for (const at::Tensor& gradient : torch::autograd::grad(
                 {out.write_key}, {args.k, args.beta, args.retention, args.initial_scale.value},
                 {contiguous ? dy.contiguous() : dy}))
          results[contiguous].push_back(gradient);
      }
      for (size_t i = 0; i < results[0].size(); ++i) CHECK(at::equal(results[0][i], results[1][i]));
    }
}

TEST_CASE("a later token changes no bit before it, and a loss before it has no gradient there",
          "[precond_scan_edges][cuda]") {
  for (const int64_t length : {15, 17, 22, 33, 63, 65}) {
    CAPTURE(length);
    const PrecondScanArgs args =
        to_device(make({.offsets = {0, length}, .H = 1, .HV = 2, .K = 128, .dtype = at::kBFloat16}), kGpu);
    PrecondScanArgs changed = mapped(args, [](const at::Tensor& x) { return x.clone(); });
    {
      const at::NoGradGuard no_grad;
      changed.k[length - 1].mul_(-3).add_(1);
      changed.beta[length - 1].fill_(0.99);
    }
    const int64_t before = length - 1;
    const PrecondScanOutput out = precond_scan(args);
    const PrecondScanOutput other = precond_scan(changed);
    CHECK(at::equal(out.write_key.narrow(0, 0, before), other.write_key.narrow(0, 0, before)));
    const auto grads = torch::autograd::grad({out.write_key.narrow(0, 0, before).square().sum()},
                                             {args.k, args.beta, args.initial_scale.value});
    const auto others = torch::autograd::grad({other.write_key.narrow(0, 0, before).square().sum()},
                                              {changed.k, changed.beta, changed.initial_scale.value});
    for (size_t i = 0; i < 2; ++i) {
      CHECK(grads[i][before].abs().max().item<double>() == 0);
      CHECK(at::equal(grads[i], others[i]));
    }
    CHECK(at::equal(grads[2], others[2]));
  }
}

TEST_CASE("zero, denormal and small keys pass the scan kernels finite and as in float64",
          "[precond_scan_edges][cuda]") {
  const bool divide = GENERATE(false, true);
  Spec spec{.offsets = {0, 40}, .H = 1, .HV = 1, .K = 128, .dtype = at::kBFloat16};
  spec.options.divide_by_key_norm = divide;
  const PrecondScanArgs args = make(spec);
  {
    const at::NoGradGuard no_grad;
    args.k.narrow(0, 0, 3).zero_();
    args.k[5].zero_();
    args.k[5][0][7] = 1e-40;
    args.k[9].mul_(1e-3 / args.k[9].norm().item<double>());
    args.beta[11].zero_();
    args.beta[12].fill_(1);
  }
  check_against_float64(args, kHalf);
}

TEST_CASE("with a step of 0 from d = 1 the write key is the unit key to the bit",
          "[precond_scan_edges][cuda]") {
  Spec spec{.offsets = {0, 50, 333}, .H = 2, .HV = 2, .K = 128, .dtype = at::kBFloat16};
  spec.options.step_size = 0;
  const PrecondScanArgs cpu = make(spec);
  {
    const at::NoGradGuard no_grad;
    cpu.initial_scale.value.fill_(1);
  }
  const PrecondScanOutput out = precond_scan(to_device(cpu, kGpu));
  CHECK(at::equal(out.write_key.detach().cpu(), precond_scan(cpu).write_key.detach()));
  CHECK(at::equal(out.final_d.detach().cpu(), at::ones({2, 2, 128})));
}

TEST_CASE("the statistics of the scan kernels are float64's and the same bits again",
          "[precond_scan_edges][cuda]") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  for (const Retention retention : {Retention::kNone, Retention::kPerHead, Retention::kPerChannel})
    for (const int64_t K : {48, 128, 256}) {
      CAPTURE(static_cast<int>(retention), K);
      const PrecondScanArgs args = make(
          {.offsets = {0, 0, 3, 700, 701}, .H = 1, .HV = 2, .K = K, .retention = retention, .dtype = dtype});
      const at::Tensor truth =
          (dtype == at::kFloat ? precond_scan(to_double(args)) : over_rounded_keys(to_double(args)))
              .statistics;
      const PrecondScanArgs there = to_device(args, kGpu);
      const PoisonedMemory poisoned;
      const at::Tensor found = precond_scan(there).statistics;
      CHECK(at::equal(found, precond_scan(there).statistics));
      for (int64_t term = 0; term < kNumResidualTerms; ++term) {
        CAPTURE(term);
        const double expected = truth[term].item<double>();
        // Rounding holds channels on the bound or off it.
        const double tolerance = term == kResidualScaleAtBox ? 5e-3 : 1e-4;
        CHECK(found[term].item<double>() == Approx(expected).epsilon(tolerance));
      }
    }
}

TEST_CASE("rows beyond 2^31 numbers have the bits of the first", "[precond_scan_edges][cuda]") {
  const int64_t T = 16384;
  const int64_t H = 64;
  const int64_t B = 17;
  at::manual_seed(9);
  const at::NoGradGuard no_grad;
  PrecondScanArgs one;
  one.k = at::randn({T, H, 128}, at::TensorOptions(kGpu).dtype(at::kBFloat16));
  one.beta = at::rand({T, H}, at::TensorOptions(kGpu).dtype(at::kFloat));
  one.initial_scale.value = at::ones({H, 128}, one.beta.options());
  one.sequences = Sequences::equal(1, T, kGpu);
  PrecondScanArgs all = one;
  all.k = one.k.repeat({B, 1, 1});
  all.beta = one.beta.repeat({B, 1});
  all.sequences = Sequences::equal(B, T, kGpu);
  const PrecondScanOutput single = precond_scan(one);
  const PrecondScanOutput many = precond_scan(all);
  for (int64_t b = 0; b < B; ++b) {
    CHECK(at::equal(many.write_key.narrow(0, b * T, T), single.write_key));
    CHECK(at::equal(many.final_d[b], single.final_d[0]));
  }
}

TEST_CASE("the end of a long sequence is that of its tail", "[precond_scan_edges][cuda]") {
  for (const int64_t length : {65535, 65536, 65537, 131073}) {
    const at::NoGradGuard no_grad;
    const PrecondScanArgs args =
        to_device(make({.offsets = {0, length}, .H = 1, .HV = 1, .K = 64, .dtype = at::kBFloat16}), kGpu);
    const auto part = [&](int64_t begin, int64_t count, const at::Tensor& carried) {
      PrecondScanArgs piece = only(args, begin, count, carried);
      piece.sequences = Sequences::equal(1, count, kGpu);
      return precond_scan(piece);
    };
    const PrecondScanOutput out = precond_scan(args);
    const PrecondScanOutput tail = part(length - 64, 64, part(0, length - 64, {}).final_d);
    CHECK(at::equal(out.write_key.narrow(0, length - 64, 64), tail.write_key));
    CHECK(at::equal(out.final_d, tail.final_d));
  }
}

}  // namespace osdn::ops::precond_scan_edges_test
