// The CUDA kernels of the preconditioner scan against the float64 token loop, in every mode.
#include <algorithm>
#include <string>
#include <vector>

#include "ops/precond_scan.h"
#include "tests/ops/precond_scan_cases.h"
#include "tests/support/test.h"

namespace osdn::ops::precond_scan_cuda_test {

using namespace precond_scan_test;  // the cases

const at::Device kScanDevice(at::kCUDA, 0);

/// The float64 token loop over unit keys rounded to bf16, as the op rounds them; the gradient passes the
/// rounding.
PrecondScanOutput with_rounded_keys(const PrecondScanArgs& args) {
  PrecondScanArgs rounded = args;
  if (args.options.l2_normalize) rounded.k = args.k * at::rsqrt(args.k.square().sum(-1, true) + 1e-6);
  rounded.k = rounded.k + (rounded.k.to(at::kBFloat16).to(at::kDouble) - rounded.k).detach();
  rounded.options.l2_normalize = false;
  PrecondScanOutput out = precond_scan_ref(rounded);
  out.write_key = out.write_key.to(at::kBFloat16);
  return out;
}

TEST_CASE("the scan kernels equal float64 in value and every gradient in every mode",
          "[precond_scan_cuda][cuda]") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t K = GENERATE(16, 48, 64, 128, 160, 256);
  for (const HypergradientRule rule : {HypergradientRule::kBetaAware, HypergradientRule::kBetaFree})
    for (const bool divide : {false, true})
      for (const Retention retention : {Retention::kNone, Retention::kPerHead, Retention::kPerChannel})
        for (const bool anchored : {false, true})
          for (const bool normalize : {false, true}) {
            if (anchored && retention == Retention::kNone) continue;
            Spec spec{.offsets = {0, 0, 5, 5, 75, 76},
                      .H = 1,
                      .HV = 2,
                      .K = K,
                      .retention = retention,
                      .carried = divide,
                      .dtype = dtype};
            spec.options.rule = rule;
            spec.options.divide_by_key_norm = divide;
            spec.options.anchored = anchored;
            spec.options.l2_normalize = normalize;
            CAPTURE(K, static_cast<int>(rule), divide, static_cast<int>(retention), anchored, normalize);
            PrecondScanArgs args = make(spec);
            if (!normalize) args.k = (args.k.detach() / 8).detach().set_requires_grad(true);
            const Result truth =
                run(dtype == at::kFloat ? precond_scan_ref : with_rounded_keys, to_double(args));
            // bf16: the rounding of the gradient of the key, which is made orthogonal to the rounded key.
            check_equal(run(precond_scan, to_device(args, kScanDevice)), truth,
                        dtype == at::kFloat ? 2e-5 : 1.5e-2);
          }
}

TEST_CASE("the scan kernels add the gradient of the key handed on for reading", "[precond_scan_cuda][cuda]") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t K = GENERATE(16, 64, 128, 256);
  const bool detach = GENERATE(false, true);
  for (const Retention retention : {Retention::kNone, Retention::kPerChannel}) {
    Spec spec{
        .offsets = {0, 0, 5, 5, 75, 76}, .H = 2, .HV = 4, .K = K, .retention = retention, .dtype = dtype};
    spec.options.detach = detach;
    CAPTURE(K, detach, static_cast<int>(retention));
    const PrecondScanArgs args = make(spec);
    const at::Tensor upstream = (0.2 * weights_like(args.k, 3)).to(dtype).to(at::kDouble);  // [N, H, K]
    const at::Tensor truth =
        run(dtype == at::kFloat ? precond_scan_ref : with_rounded_keys, to_double(args)).gradients.at("k") +
        upstream;
    const PrecondScanArgs there = to_device(args, kScanDevice);
    // Strided, as a view of a wider tensor.
    const at::Tensor wide = at::cat({upstream, upstream}, 1).to(dtype).to(kScanDevice);
    const auto both = [&](const PrecondScanOutput& out, bool only_read) {
      std::vector<at::Tensor> outputs = {out.read_key};
      std::vector<at::Tensor> gradients = {wide.narrow(1, 0, 2)};
      if (!only_read) {
        outputs.push_back(loss(out));
        gradients.emplace_back();
      }
      return torch::autograd::grad(outputs, {there.k}, gradients)[0];
    };
    const at::Tensor found = both(precond_scan(there), false);
    test::check_close("dk", found, truth, dtype == at::kFloat ? 2e-5 : 1.5e-2);
    CHECK(at::equal(found, both(precond_scan(there), false)));
    CHECK(at::equal(both(precond_scan(there), true), wide.narrow(1, 0, 2)));
  }
}

TEST_CASE("the scan kernels follow the clip where it is always, sometimes and never active",
          "[precond_scan_cuda][cuda]") {
  struct Box {
    double lo, hi, eta;
  };
  for (const Box& box : {Box{0.999, 1.001, 2.0}, Box{2.0 / 3, 1.5, 1.0}, Box{0.0, 30.0, 0.1}}) {
    CAPTURE(box.lo);
    Spec spec{.offsets = {0, 300}, .H = 2, .HV = 2, .K = 128, .dtype = at::kFloat};
    spec.options.box_min = box.lo;
    spec.options.box_max = box.hi;
    spec.options.step_size = box.eta;
    const PrecondScanArgs args = make(spec);
    // In a narrow box most of a gradient cancels: the CPU's fp32 loops are the yardstick.
    const Result truth = run(precond_scan_ref, to_double(args));
    const Result on_cpu = run(precond_scan, args);
    const Result on_device = run(precond_scan, to_device(args, kScanDevice));
    const auto check = [](const std::string& name, const at::Tensor& found, const at::Tensor& yardstick,
                          const at::Tensor& expected) {
      test::check_close(name, found, expected, std::max(1e-4, 2 * test::relative_rms(yardstick, expected)));
    };
    check("write_key", on_device.write_key, on_cpu.write_key, truth.write_key);
    check("final_d", on_device.final_d, on_cpu.final_d, truth.final_d);
    for (const auto& [name, gradient] : truth.gradients)
      check("d" + name, on_device.gradients.at(name), on_cpu.gradients.at(name), gradient);
  }
}

TEST_CASE("the scan kernels give the same bits again, packed or alone, in one piece or in two",
          "[precond_scan_cuda][cuda]") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const std::vector<int64_t> offsets = {0, 0, 17, 18, 200, 333};
  const PrecondScanArgs args = to_device(
      make({.offsets = offsets, .H = 1, .HV = 2, .K = 128, .retention = Retention::kPerHead, .dtype = dtype}),
      kScanDevice);
  const Result first = run(precond_scan, args);
  const Result again = run(precond_scan, args);
  CHECK(at::equal(first.write_key, again.write_key));
  for (const auto& [name, gradient] : first.gradients) CHECK(at::equal(gradient, again.gradients.at(name)));
  const at::NoGradGuard no_grad;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t length = offsets[s + 1] - offsets[s];
    if (length < 2) continue;
    const auto piece = [&](int64_t begin, int64_t count, const at::Tensor& carried) {
      PrecondScanArgs part = only(args, begin, count, carried);
      part.sequences = Sequences::equal(1, count, kScanDevice);
      return precond_scan(part);
    };
    const PrecondScanOutput head = piece(offsets[s], length / 2, {});
    const PrecondScanOutput tail = piece(offsets[s] + length / 2, length - length / 2, head.final_d);
    CHECK(
        at::equal(at::cat({head.write_key, tail.write_key}), first.write_key.narrow(0, offsets[s], length)));
    CHECK(at::equal(tail.final_d[0], first.final_d[static_cast<int64_t>(s)]));
  }
}

}  // namespace osdn::ops::precond_scan_cuda_test
