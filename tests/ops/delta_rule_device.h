// Problems of the delta rule made on the GPU, at sizes and regimes of training, and their comparison with
// float64: every output and gradient by name, relative RMS error at most the larger of 1e-2 and 1.5 times
// that of the chunk form with operands rounded to bf16.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/delta_rule.h"
#include "ops/detail/delta_rule.h"
#include "tests/ops/delta_rule_cases.h"
#include "tests/ops/delta_rule_rounded.h"
#include "tests/support/poison.h"
#include "tests/support/test.h"

namespace osdn::ops::delta_rule_device {

using delta_rule_test::Decay;
using delta_rule_test::inputs;
using delta_rule_test::Result;

inline const at::Device kGpu(at::kCUDA, 0);

constexpr double kBf16Bound = 1e-2;
constexpr double kReferenceFactor = 1.5;
constexpr double kFp32Bound = 1e-4;

struct Draw {
  std::vector<int64_t> offsets;
  int64_t H, HV, K, V;
  Decay decay = Decay::kNone;
  bool uniform = false;        // q, k, v in [0, 1): keys nearly parallel
  double gate_divisor = 1;     // of log-decays logsigmoid(x)
  double gate_zero_share = 0;  // of them set to 0
  double gate_floor = -1e30;   // smallest
  bool write_key = false;      // near the normalised key
  bool initial_state = true;
  at::ScalarType dtype = at::kBFloat16;
  bool decay_in_dtype = false;  // log-decays by channel in `dtype`, not in fp32
  std::optional<double> scale;
};

inline std::vector<int64_t> equal_offsets(int64_t B, int64_t T) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i <= B; ++i) offsets.push_back(i * T);
  return offsets;
}

/// Leaves that require grad, on the GPU.
inline DeltaRuleArgs draw(const Draw& spec) {
  at::manual_seed(42);
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(kGpu);
  const int64_t N = spec.offsets.back();
  const auto leaf = [](const at::Tensor& x, at::ScalarType type) {
    return x.to(type).detach().set_requires_grad(true);
  };
  const auto values = [&](at::IntArrayRef shape) {
    return spec.uniform ? at::rand(shape, fp32) : at::randn(shape, fp32);
  };
  DeltaRuleArgs args;
  args.q = leaf(values({N, spec.H, spec.K}), spec.dtype);
  args.k = leaf(values({N, spec.H, spec.K}), spec.dtype);
  args.v = leaf(values({N, spec.HV, spec.V}), spec.dtype);
  args.beta = leaf(values({N, spec.HV}).sigmoid(), at::kFloat);
  if (spec.write_key) {
    const at::Tensor key = args.k.detach().to(at::kFloat).repeat_interleave(spec.HV / spec.H, 1);
    args.write_key =
        leaf(key / key.norm(2, {-1}, true) * (0.6 + 0.8 * at::rand(key.sizes(), fp32)), spec.dtype);
  }
  if (spec.decay != Decay::kNone) {
    std::vector<int64_t> shape = {N, spec.HV};
    if (spec.decay == Decay::kChannel) shape.push_back(spec.K);
    at::Tensor gate = at::log_sigmoid(values(shape)) / spec.gate_divisor;
    if (spec.gate_zero_share > 0) gate.masked_fill_(at::rand(shape, fp32) <= spec.gate_zero_share, 0);
    args.log_decay = leaf(gate.clamp_min(spec.gate_floor), spec.decay_in_dtype ? spec.dtype : at::kFloat);
  }
  if (spec.initial_state)
    args.initial_state =
        leaf(at::randn({static_cast<int64_t>(spec.offsets.size()) - 1, spec.HV, spec.K, spec.V}, fp32),
             at::kFloat);
  args.sequences = Sequences::make(spec.offsets, kGpu);
  args.scale = spec.scale;
  return args;
}

/// Relative RMS error, computed where the tensors are.
inline double device_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor e = expected.detach().to(at::kDouble);
  const double norm = e.norm().item<double>();
  const double difference = (actual.detach().to(at::kDouble) - e).norm().item<double>();
  return norm > 0 ? difference / norm : difference;
}

using Op = std::function<DeltaRuleOutput(const DeltaRuleArgs&)>;

inline DeltaRuleOutput chunk_form(const DeltaRuleArgs& args) { return delta_rule_chunked(args); }

/// Outputs and gradients for upstream gradients that every call with the same shapes gets alike, exact in
/// bf16.
inline Result evaluate(const Op& op, const DeltaRuleArgs& args) {
  const DeltaRuleOutput out = op(args);
  at::manual_seed(7);
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(out.o.device());
  const at::Tensor d_o = at::randn(out.o.sizes(), fp32).to(at::kBFloat16).to(out.o.scalar_type());
  const at::Tensor d_final =
      at::randn(out.final_state.sizes(), fp32).to(at::kBFloat16).to(out.final_state.scalar_type());
  Result result{.o = out.o.detach(), .final_state = out.final_state.detach(), .gradients = {}};
  std::vector<at::Tensor> leaves;
  for (const auto& [name, x] : inputs(args)) leaves.push_back(x);
  const auto gradients =
      torch::autograd::grad({out.o, out.final_state}, leaves, {d_o, d_final}, std::nullopt, false, true);
  size_t i = 0;
  for (const auto& [name, x] : inputs(args)) {
    result.gradients[name] = gradients[i].defined() ? gradients[i] : at::zeros_like(x);
    ++i;
  }
  return result;
}

inline std::vector<std::pair<std::string, at::Tensor>> named(const Result& result) {
  std::vector<std::pair<std::string, at::Tensor>> list = {{"o", result.o},
                                                          {"final_state", result.final_state}};
  for (const auto& [name, x] : result.gradients) list.emplace_back("d" + name, x);
  return list;
}

/// The kernels for any device, also where there are faster ones, while this lives.
class PortableKernels {
 public:
  explicit PortableKernels(bool portable) { delta_rule_detail::set_portable_kernels(portable); }
  ~PortableKernels() { delta_rule_detail::set_portable_kernels(false); }
  PortableKernels(const PortableKernels&) = delete;
  PortableKernels& operator=(const PortableKernels&) = delete;
};

/// delta_rule, its outputs poisoned, against the float64 chunk form; in bf16 also by the portable kernels.
inline void check_against_float64(const DeltaRuleArgs& args) {
  const auto expected = named(evaluate(chunk_form, delta_rule_test::to_double(args)));
  const bool bf16 = args.q.scalar_type() == at::kBFloat16;
  std::vector<std::pair<std::string, at::Tensor>>
      rounded;  // of the rounded form, made where the plain bound fails
  const auto allowed_error = [&](size_t i) {
    if (rounded.empty()) rounded = named(evaluate(delta_rule_rounded::chunk_form, args));
    const double reference = device_error(rounded[i].second, expected[i].second);
    return std::isfinite(reference) ? std::max(kBf16Bound, kReferenceFactor * reference) : kBf16Bound;
  };
  for (const bool portable : {false, true}) {
    if (portable && !bf16) break;
    CAPTURE(portable);
    const PortableKernels kernels(portable);
    const auto actual = [&] {
      const osdn::test::PoisonedMemory poisoned;
      return named(evaluate(delta_rule, args));
    }();
    REQUIRE(actual.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      INFO(expected[i].first);
      REQUIRE(actual[i].second.sizes() == expected[i].second.sizes());
      CHECK(at::isfinite(actual[i].second).all().item<bool>());
      const double error = device_error(actual[i].second, expected[i].second);
      double allowed = bf16 ? kBf16Bound : kFp32Bound;
      if (bf16 && error > allowed) allowed = allowed_error(i);
      INFO("relative RMS error " << error << ", allowed " << allowed);
      CHECK(error <= allowed);
    }
  }
}

}  // namespace osdn::ops::delta_rule_device
