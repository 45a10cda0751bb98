// The delta rule on the GPU against float64 over the rows of the peer's acceptance tests
// (flash-linear-attention: test_delta, test_gdn, test_kda), in bf16 and some in fp32. Rows whose head size is
// no multiple of 16 take the ATen path and must agree all the same.
#include <vector>

#include "tests/ops/delta_rule_device.h"

namespace osdn::ops::delta_rule_matrix_test {

using delta_rule_device::check_against_float64;
using delta_rule_device::Draw;
using delta_rule_device::draw;
using delta_rule_device::equal_offsets;
using delta_rule_test::Decay;

struct Row {
  int64_t B, T, H, HV, D;
  double scale;
  double gate_divisor = 1;
  double gate_zero_share = 0;
  double gate_floor = -1e30;
};

void check_row(const Row& row, Decay decay, bool uniform, at::ScalarType dtype) {
  CAPTURE(row.B, row.T, row.H, row.HV, row.D, row.scale, row.gate_divisor, row.gate_zero_share);
  check_against_float64(draw({.offsets = equal_offsets(row.B, row.T),
                              .H = row.H,
                              .HV = row.HV,
                              .K = row.D,
                              .V = row.D,
                              .decay = decay,
                              .uniform = uniform,
                              .gate_divisor = row.gate_divisor,
                              .gate_zero_share = row.gate_zero_share,
                              .gate_floor = row.gate_floor,
                              .initial_state = true,
                              .dtype = dtype,
                              .scale = row.scale}));
}

TEST_CASE("the peer's rows without decay equal float64", "[delta_rule_matrix][cuda]") {
  for (const Row& row : {Row{1, 63, 1, 1, 64, 1}, Row{2, 100, 4, 4, 60, 0.1}, Row{2, 1000, 3, 3, 128, 0.1},
                         Row{2, 1024, 4, 4, 128, 1}, Row{3, 2000, 4, 4, 128, 0.1},
                         Row{4, 2048, 8, 8, 64, 0.1}, Row{1, 64, 2, 2, 32, 0.1}})
    check_row(row, Decay::kNone, false, at::kBFloat16);
}

TEST_CASE("the peer's rows with a decay a head equal float64", "[delta_rule_matrix][cuda]") {
  for (const Row& row :
       {Row{4, 1024, 4, 4, 128, 0.1, 1, 1.0}, Row{2, 75, 4, 4, 64, 1, 0.01}, Row{2, 500, 3, 3, 60, 1},
        Row{2, 1000, 3, 3, 64, 0.1, 1, 0.5}, Row{3, 1024, 4, 4, 100, 1, 0.1}, Row{4, 1024, 4, 4, 128, 0.1},
        Row{2, 1500, 4, 4, 128, 0.1, 10}, Row{4, 2048, 8, 8, 64, 0.1}, Row{2, 256, 2, 4, 64, 1},
        Row{2, 512, 2, 8, 64, 1, 0.1}, Row{2, 1024, 4, 8, 128, 0.1}, Row{1, 64, 2, 4, 32, 0.1}})
    check_row(row, Decay::kScalar, true, at::kBFloat16);
  // Those against the fastest other kernels: normal inputs.
  for (const Row& row :
       {Row{1, 1024, 4, 4, 128, 0.088}, Row{2, 2048, 8, 8, 128, 0.088}, Row{1, 4096, 16, 16, 128, 0.088},
        Row{1, 1024, 2, 8, 128, 0.088}, Row{2, 2048, 4, 16, 128, 0.088}})
    check_row(row, Decay::kScalar, false, at::kBFloat16);
}

TEST_CASE("the peer's rows with a decay a channel equal float64", "[delta_rule_matrix][cuda]") {
  for (const Row& row :
       {Row{1, 63, 1, 1, 64, 1, 1, 0, -5}, Row{2, 500, 3, 3, 60, 1, 1, 0, -5},
        Row{2, 1000, 3, 3, 64, 0.1, 1, 0.5}, Row{3, 1024, 4, 4, 100, 1, 0.1},
        Row{4, 1024, 4, 4, 128, 0.1, 1, 0, -5}, Row{2, 1500, 4, 4, 128, 0.1, 10},
        Row{4, 2048, 8, 8, 64, 0.1, 1, 0, -5}, Row{2, 1024, 2, 4, 64, 0.1}, Row{2, 1024, 2, 8, 64, 0.1},
        Row{2, 1024, 4, 8, 128, 0.1}, Row{2, 160, 2, 4, 64, 0.1, 1, 0, -5},
        Row{2, 1024, 2, 4, 64, 0.1, 1, 0, -5}, Row{2, 1024, 2, 8, 128, 0.1}})
    check_row(row, Decay::kChannel, true, at::kBFloat16);
}

TEST_CASE("fp32 rows of the peer equal float64 to 1e-4", "[delta_rule_matrix][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  CAPTURE(delta_rule_test::to_string(decay));
  for (const Row& row : {Row{1, 63, 1, 1, 64, 1}, Row{2, 500, 4, 4, 60, 1}, Row{2, 1000, 2, 8, 128, 1, 0.1},
                         Row{3, 1024, 2, 2, 128, 0.1}, Row{4, 1024, 3, 3, 128, 1, 10}})
    check_row(row, decay, decay == Decay::kChannel, at::kFloat);
}

TEST_CASE("the peer's packs equal float64", "[delta_rule_matrix][cuda]") {
  struct Pack {
    Decay decay;
    int64_t H, HV, D;
    std::vector<int64_t> offsets;
    double gate_zero_share = 0;
    double gate_floor = -1e30;
  };
  const std::vector<int64_t> six = {0, 15, 100, 300, 1200, 2000};
  const std::vector<int64_t> three = {0, 256, 500, 1000};
  for (const Pack& pack : {Pack{Decay::kNone, 2, 2, 64, {0, 15}},
                           Pack{Decay::kNone, 3, 3, 60, {0, 111, 500}},
                           Pack{Decay::kNone, 3, 3, 64, {0, 256, 500, 900, 1000}},
                           Pack{Decay::kNone, 4, 4, 100, {0, 15, 100, 300, 1200, 1599, 1800, 2000}},
                           Pack{Decay::kScalar, 4, 4, 60, {0, 15}},
                           Pack{Decay::kScalar, 4, 4, 64, three},
                           Pack{Decay::kScalar, 4, 4, 64, three, 0.5},
                           Pack{Decay::kScalar, 4, 4, 100, six},
                           Pack{Decay::kScalar, 2, 8, 64, three},
                           Pack{Decay::kScalar, 4, 4, 128, three},
                           Pack{Decay::kScalar, 8, 8, 128, {0, 100, 300, 1200, 2000}},
                           Pack{Decay::kScalar, 16, 16, 128, {0, 101, 303, 1205, 3007, 4096}},
                           Pack{Decay::kScalar, 4, 4, 60, {0, 8192}},
                           Pack{Decay::kChannel, 4, 4, 60, {0, 15}, 0.1},
                           Pack{Decay::kChannel, 4, 4, 64, three, 0.9},
                           Pack{Decay::kChannel, 4, 4, 128, three, 0.5},
                           Pack{Decay::kChannel, 4, 4, 100, six},
                           Pack{Decay::kChannel, 4, 4, 256, {0, 100, 300, 1200, 3000, 4096}, 0, -5},
                           Pack{Decay::kChannel, 4, 4, 60, {0, 31, 96, 160}, 0.1},
                           Pack{Decay::kChannel, 2, 2, 128, {0, 100, 256, 512, 1500, 1500}}}) {
    CAPTURE(delta_rule_test::to_string(pack.decay), pack.H, pack.HV, pack.D, pack.offsets.back());
    check_against_float64(draw({.offsets = pack.offsets,
                                .H = pack.H,
                                .HV = pack.HV,
                                .K = pack.D,
                                .V = pack.D,
                                .decay = pack.decay,
                                .uniform = pack.decay != Decay::kNone,
                                .gate_zero_share = pack.gate_zero_share,
                                .gate_floor = pack.gate_floor}));
  }
}

TEST_CASE("the float64 chunk form on the GPU equals the token recurrence", "[delta_rule_matrix][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  CAPTURE(delta_rule_test::to_string(decay));
  const DeltaRuleArgs args = delta_rule_test::make({.offsets = {0, 257, 257, 300},
                                                    .H = 1,
                                                    .HV = 2,
                                                    .K = 16,
                                                    .V = 16,
                                                    .decay = decay,
                                                    .write_key = true,
                                                    .initial_state = true});
  delta_rule_test::check_equal(
      delta_rule_test::run(delta_rule_device::chunk_form,
                           delta_rule_test::to_device(args, delta_rule_device::kGpu)),
      delta_rule_test::run(delta_rule_ref, args), 1e-10);
}

}  // namespace osdn::ops::delta_rule_matrix_test
