// The sums behind q_geo: their definition term by term, and that precond_scan and the plain form agree.
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "ops/l2_norm.h"
#include "ops/precond_scan.h"
#include "ops/residual_stats.h"
#include "tests/support/poison.h"
#include "tests/support/test.h"

namespace osdn::ops::residual_stats_test {

using osdn::test::check_close;

double term(const at::Tensor& statistics, ResidualTerm index) {
  return statistics.cpu()[index].item<double>();
}

TEST_CASE("plain statistics are the sums of their definition", "[residual_stats]") {
  at::manual_seed(1);
  const bool normalize = GENERATE(true, false);
  const at::Tensor k = 0.4 * at::randn({300, 2, 5}, at::kDouble);
  const at::Tensor beta = at::rand({300, 4}, at::kDouble);
  const at::Tensor unit = (normalize ? l2_norm_ref(k) : k).repeat_interleave(2, 1);
  const at::Tensor strength = beta * unit.square().sum(-1);
  const at::Tensor statistics = plain_residual_stats(k, beta, normalize);
  CHECK(term(statistics, kResidualCount) == 1200);
  const double log_sum = (1 - strength).square().log().sum().item<double>();
  CHECK(term(statistics, kResidualLogSum) == Approx(log_sum).epsilon(1e-12));
  CHECK(term(statistics, kResidualLogSumPlain) == term(statistics, kResidualLogSum));
  CHECK(term(statistics, kResidualFloorCount) == 0);
  CHECK(term(statistics, kResidualBetaSum) == Approx(beta.sum().item<double>()));
  CHECK(term(statistics, kResidualStrengthMax) == Approx(strength.max().item<double>()));
  CHECK(term(statistics, kResidualScaleCount) == 0);
  CHECK(term(statistics, kResidualRetentionCount) == 0);
}

TEST_CASE("a write that removes the whole error is counted at the floor", "[residual_stats]") {
  const at::Tensor k = at::tensor({1.0, 0.0, 0.6, 0.8}, at::kDouble).view({2, 1, 2});
  const at::Tensor beta = at::tensor({1.0, 0.5}, at::kDouble).view({2, 1});
  const at::Tensor statistics = plain_residual_stats(k, beta, false);
  CHECK(term(statistics, kResidualFloorCount) == 1);
  CHECK(term(statistics, kResidualLogSum) == Approx(std::log(1e-30) + std::log(0.25)));
}

TEST_CASE("the scan's statistics are the sums of their definition", "[residual_stats]") {
  at::manual_seed(2);
  PrecondScanArgs args;
  args.k = at::randn({200, 1, 6}, at::kDouble);
  args.beta = at::rand({200, 2}, at::kDouble);
  args.retention = 1 - 0.01 * at::rand({200, 2}, at::kDouble);
  args.initial_scale.value = at::ones({2, 6}, at::kDouble);
  args.sequences = Sequences::make({0, 50, 50, 200}, at::kCPU);
  args.collect_statistics = true;
  const PrecondScanOutput out = precond_scan(args);
  const at::Tensor unit = l2_norm_ref(args.k).expand({200, 2, 6});
  const at::Tensor d = out.write_key / unit;
  const at::Tensor strength = args.beta * (out.write_key * unit).sum(-1);
  const at::Tensor plain = args.beta * unit.square().sum(-1);
  const at::Tensor& s = out.statistics;
  CHECK(term(s, kResidualCount) == 400);
  CHECK(term(s, kResidualLogSum) == Approx((1 - strength).square().log().sum().item<double>()));
  CHECK(term(s, kResidualLogSumPlain) == Approx((1 - plain).square().log().sum().item<double>()));
  CHECK(term(s, kResidualStrengthMax) == Approx(strength.max().item<double>()));
  CHECK(term(s, kResidualScaleCount) == 2400);
  CHECK(term(s, kResidualScaleSum) == Approx(d.sum().item<double>()));
  CHECK(term(s, kResidualScaleMin) == Approx(d.min().item<double>()));
  CHECK(term(s, kResidualScaleMax) == Approx(d.max().item<double>()));
  const auto rounding = [](const at::Tensor& x, double bound) { return (x - bound).abs() < 1e-12; };
  const at::Tensor at_box = rounding(d, args.options.box_min) | rounding(d, args.options.box_max);
  CHECK(term(s, kResidualScaleAtBox) == at_box.sum().item<double>());
  CHECK(term(s, kResidualScaleAtBox) > 0);
  CHECK(term(s, kResidualRetentionCount) == 400);
  CHECK(term(s, kResidualRetentionSum) == Approx(args.retention.sum().item<double>()));
}

TEST_CASE("with d = 1 the scan's statistics are the plain ones", "[residual_stats]") {
  at::manual_seed(3);
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  PrecondScanArgs args;
  args.k = at::randn({150, 2, 6}, at::kDouble).to(dtype);
  args.beta = at::rand({150, 2}, at::kDouble).to(wide);
  args.initial_scale.value = at::ones({2, 6}, wide);
  args.sequences = Sequences::equal(3, 50, at::kCPU);
  args.options.step_size = 0;
  args.collect_statistics = true;
  const at::Tensor scan = precond_scan(args).statistics;
  const at::Tensor plain = plain_residual_stats(args.k, args.beta, true);
  CHECK(term(scan, kResidualLogSumPlain) == term(scan, kResidualLogSum));
  CHECK(term(scan, kResidualLogSum) == Approx(term(plain, kResidualLogSum)).epsilon(1e-13));
  CHECK(term(scan, kResidualStrengthMax) == term(plain, kResidualStrengthMax));
}

TEST_CASE("no tokens give neutral elements", "[residual_stats]") {
  const at::Tensor statistics = plain_residual_stats(at::zeros({0, 1, 4}), at::zeros({0, 2}), true);
  CHECK(term(statistics, kResidualCount) == 0);
  CHECK(term(statistics, kResidualLogSum) == 0);
  CHECK(term(statistics, kResidualStrengthMax) == -std::numeric_limits<double>::infinity());
  CHECK(term(statistics, kResidualScaleMin) == std::numeric_limits<double>::infinity());
}

TEST_CASE("the bits of the plain statistics do not depend on the number of threads", "[residual_stats]") {
  at::manual_seed(4);
  const at::Tensor k = at::randn({3000, 2, 16});
  const at::Tensor beta = at::rand({3000, 2});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = plain_residual_stats(k, beta, true);
  at::set_num_threads(3);
  const at::Tensor three = plain_residual_stats(k, beta, true);
  at::set_num_threads(threads);
  CHECK(at::equal(one, three));
}

TEST_CASE("a beta that does not fit the keys is refused", "[residual_stats]") {
  CHECK_THROWS_AS(plain_residual_stats(at::zeros({3, 2, 4}), at::zeros({3, 3}), true), UserError);
  CHECK_THROWS_AS(plain_residual_stats(at::zeros({3, 2, 4}), at::zeros({4, 2}), true), UserError);
}

TEST_CASE("statistics on the device are float64's of the rounded keys, the same bits again",
          "[residual_stats][cuda]") {
  const at::Device device(at::kCUDA, 0);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const bool normalize = GENERATE(true, false);
  for (const int64_t K : {16, 60, 100, 128, 130, 256, 300}) {  // 130 and 300: by ATen
    CAPTURE(K, normalize);
    at::manual_seed(5);
    const at::Tensor fused = (at::randn({1003, 6, K}) / 4).to(dtype);
    const at::Tensor k = fused.narrow(1, 2, 2).narrow(0, 1, 1000);
    const at::Tensor beta = at::rand({1000, 4}).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor rounded = normalize ? l2_norm_ref(k.to(at::kDouble)).to(dtype) : k;
    const at::Tensor truth = plain_residual_stats(rounded.to(at::kDouble), beta.to(at::kDouble), false);
    const at::Tensor there = fused.to(device).narrow(1, 2, 2).narrow(0, 1, 1000);
    const osdn::test::PoisonedMemory poisoned;
    const at::Tensor found = plain_residual_stats(there, beta.to(device), normalize);
    CHECK(at::equal(found, plain_residual_stats(there, beta.to(device), normalize)));
    for (int64_t index = 0; index < kNumResidualTerms; ++index) {
      CAPTURE(index);
      const auto of = static_cast<ResidualTerm>(index);
      CHECK(term(found, of) == Approx(term(truth, of)).epsilon(2e-5));
    }
  }
}

TEST_CASE("no tokens and exact writes on the device are counted as on the CPU", "[residual_stats][cuda]") {
  const at::Device device(at::kCUDA, 0);
  const at::Tensor none =
      plain_residual_stats(at::zeros({0, 1, 16}).to(device), at::zeros({0, 2}).to(device), true);
  CHECK(term(none, kResidualCount) == 0);
  CHECK(term(none, kResidualLogSum) == 0);
  CHECK(term(none, kResidualStrengthMax) == -std::numeric_limits<double>::infinity());
  CHECK(term(none, kResidualScaleMin) == std::numeric_limits<double>::infinity());
  CHECK(term(none, kResidualScaleMax) == -std::numeric_limits<double>::infinity());
  at::Tensor k = at::zeros({3, 1, 16});
  k[0][0][3] = 1;
  k[1][0][15] = 1;
  const at::Tensor beta = at::tensor({1.0f, 0.5f, 0.25f}).view({3, 1});
  const at::Tensor exact = plain_residual_stats(k.to(device), beta.to(device), false);
  CHECK(term(exact, kResidualFloorCount) == 1);
  CHECK(term(exact, kResidualLogSum) == Approx(std::log(1e-30) + std::log(0.25)));
  CHECK(term(exact, kResidualStrengthMax) == 1);
}

}  // namespace osdn::ops::residual_stats_test
