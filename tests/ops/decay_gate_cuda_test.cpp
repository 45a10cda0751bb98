// The CUDA kernels of the decay gate against the reference in float64 on the CPU.
#include <optional>
#include <vector>

#include "ops/decay_gate.h"
#include "ops/detail/decay_gate_paths.h"
#include "tensor/device_graph.h"
#include "tests/support/op_check.h"
#include "tests/support/poison.h"

namespace osdn::test::decay_gate_cuda_test {

const at::Device kDevice(at::kCUDA, 0);
const std::vector<std::optional<double>> kBounds = {std::nullopt, -5.0};

// A few float32 roundings of logarithms and exponentials.
constexpr double kFloatTolerance = 2e-6;
// One rounding to the 8 bits of bf16.
constexpr double kHalfTolerance = 4e-3;

/// a [N, HV] or [N, HV, K] with the weights as they are trained, in float32.
struct Inputs {
  at::Tensor a, log_rate, bias;

  Inputs(int64_t tokens, int64_t heads, int64_t channels, at::ScalarType type)
      : a((2 * normal({tokens, heads, std::max<int64_t>(channels, 1)}, 1)).to(kDevice, type)),
        log_rate(normal({heads}, 2).to(kDevice, at::kFloat)),
        bias((normal({heads * std::max<int64_t>(channels, 1)}, 3) - 1).to(kDevice, at::kFloat)) {
    if (channels == 0) a = a.squeeze(2);
  }
};

/// g, da, gradients of log_rate and bias. g has the dtype of dg.
Tensors run(const Inputs& in, const at::Tensor& dg, std::optional<double> bound) {
  const at::Tensor a = in.a.detach().requires_grad_();
  const at::Tensor log_rate = in.log_rate.detach().requires_grad_();
  const at::Tensor bias = in.bias.detach().requires_grad_();
  const at::Tensor g = ops::decay_gate({.a = a,
                                        .log_rate = {log_rate, {}},
                                        .bias = {bias, {}},
                                        .lower_bound = bound,
                                        .rounded = dg.scalar_type() == a.scalar_type()});
  REQUIRE(g.scalar_type() == dg.scalar_type());
  g.backward(dg);
  return {g.detach(), a.grad(), log_rate.grad(), bias.grad()};
}

Tensors run_reference(const Inputs& in, const at::Tensor& dg, std::optional<double> bound) {
  const auto wide = [](const at::Tensor& x) { return x.detach().to(at::kCPU, at::kDouble).requires_grad_(); };
  const at::Tensor a = wide(in.a);
  const at::Tensor log_rate = wide(in.log_rate);
  const at::Tensor bias = wide(in.bias);
  const at::Tensor g = ops::decay_gate_ref(a, log_rate, bias, bound);
  g.backward(dg.to(at::kCPU, at::kDouble));
  return {g.detach(), a.grad(), log_rate.grad(), bias.grad()};
}

void check(const Inputs& in, std::optional<double> bound) {
  CAPTURE(in.a.sizes(), in.a.strides(), c10::toString(in.a.scalar_type()), bound.has_value());
  REQUIRE(ops::decay_gate_detail::on_kernel_path(in.a, in.log_rate, in.bias));
  std::vector<at::ScalarType> types = {at::kFloat};  // of g
  if (in.a.scalar_type() != at::kFloat) types.push_back(in.a.scalar_type());
  for (const at::ScalarType type : types) {
    CAPTURE(c10::toString(type));
    const at::Tensor dg = normal(in.a.sizes(), 4).to(kDevice, type);
    const Tensors actual = run(in, dg, bound);
    const Tensors expected = run_reference(in, dg, bound);
    const char* names[] = {"g", "da", "dlog_rate", "dbias"};
    for (size_t i = 0; i < expected.size(); ++i)
      check_close(names[i], actual[i], expected[i],
                  i < 2 && actual[i].scalar_type() == at::kBFloat16 ? kHalfTolerance : kFloatTolerance);
  }
}

TEST_CASE("the decay gate's kernels equal float64 at every size", "[decay_gate_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  for (const std::optional<double>& bound : kBounds)
    for (const int64_t channels : {0, 5, 32, 128})
      for (const int64_t tokens : {1, 31, 65, 1000, 4097}) check(Inputs(tokens, 9, channels, type), bound);
}

TEST_CASE("the decay gate's kernels read rows of a wider matrix where they lie", "[decay_gate_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t before = GENERATE(0, 3, 8);
  for (const std::optional<double>& bound : kBounds)
    for (const int64_t channels : {0, 32}) {
      Inputs in(70, 4, channels, type);
      const at::Tensor wide = at::cat({in.a.flatten(1), in.a.flatten(1), in.a.flatten(1)}, 1);
      in.a = wide.narrow(1, before, in.a.flatten(1).size(1)).view(in.a.sizes());
      check(in, bound);
    }
}

TEST_CASE("the decay gate's kernels give the same bits every time and wherever rows and gradients lie",
          "[decay_gate_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);  // of g
  for (const std::optional<double>& bound : kBounds) {
    const Inputs in(3000, 8, 128, at::kBFloat16);
    const at::Tensor dg = normal({3000, 8, 128}, 4).to(kDevice, type);
    const Tensors first = run(in, dg, bound);
    Inputs misaligned = in;
    misaligned.a = at::empty({3000, 2048}, in.a.options()).narrow(1, 3, 1024).view(in.a.sizes());
    misaligned.a.copy_(in.a);
    const at::Tensor buffer = at::empty({dg.numel() + 1}, dg.options());
    const at::Tensor shifted = buffer.narrow(0, 1, dg.numel()).view(dg.sizes());
    shifted.copy_(dg);
    for (const Tensors& again : {run(in, dg, bound), run(misaligned, dg, bound), run(in, shifted, bound)})
      for (size_t i = 0; i < first.size(); ++i) CHECK(at::equal(again[i], first[i]));
    // A token has the bits that it has without company.
    CHECK(at::equal(ops::decay_gate({.a = in.a.narrow(0, 2999, 1),
                                     .log_rate = {in.log_rate, {}},
                                     .bias = {in.bias, {}},
                                     .lower_bound = bound,
                                     .rounded = type == at::kBFloat16}),
                    first[0].narrow(0, 2999, 1)));
  }
}

TEST_CASE("the decay gate's kernels keep the digits of small decays", "[decay_gate_cuda][cuda]") {
  const PoisonedMemory poisoned;
  Inputs in(64, 1, 128, at::kFloat);
  in.a = at::linspace(-15, 60, 64 * 128, in.a.options()).view({64, 1, 128});
  in.bias.zero_();
  const at::Tensor dg = at::ones_like(in.a);
  for (const std::optional<double>& bound : kBounds) {
    const Tensors actual = run(in, dg, bound);
    const Tensors expected = run_reference(in, dg, bound);
    const auto worst = [&](size_t i) {
      const at::Tensor few = expected[i].slice(0, 0, 16);  // up to 3.75; above, a bounded slope vanishes
      return ((actual[i].cpu().to(at::kDouble).slice(0, 0, 16) - few) / few).abs().max().item<double>();
    };
    CHECK(worst(0) < 1e-5);
    CHECK(worst(1) < 1e-5);
  }
}

TEST_CASE("the decay gate adds to its gradient sinks, inside a graph too", "[decay_gate_cuda][cuda]") {
  const Inputs in(300, 8, 128, at::kBFloat16);
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);  // of g
  const at::Tensor dg = normal(in.a.sizes(), 4).to(kDevice, type);
  const Tensors expected = run(in, dg, -5.0);
  const at::Tensor a = in.a.detach().requires_grad_();
  const at::Tensor rate_sink = at::zeros_like(in.log_rate);
  const at::Tensor bias_sink = at::zeros_like(in.bias);
  at::Tensor g, da;
  DeviceGraph graph;
  graph.capture([&] {  // runs it once
    g = ops::decay_gate({.a = a,
                         .log_rate = {in.log_rate, rate_sink},
                         .bias = {in.bias, bias_sink},
                         .lower_bound = -5.0,
                         .rounded = type == at::kBFloat16});
    da = torch::autograd::grad({g}, {a}, {dg})[0];
  });
  CHECK(at::equal(rate_sink, expected[2]));
  CHECK(at::equal(bias_sink, expected[3]));
  graph.replay();
  CHECK(at::equal(g.detach(), expected[0]));
  CHECK(at::equal(da, expected[1]));
  CHECK(at::equal(rate_sink, 2 * expected[2]));
  CHECK(at::equal(bias_sink, 2 * expected[3]));
  const ForbidSynchronization forbid;
  run(in, dg, -5.0);
}

TEST_CASE("the last of more than 2^31 gates are those of their tokens alone", "[decay_gate_cuda][cuda]") {
  const bool rounded = GENERATE(false, true);
  const int64_t N = (int64_t{1} << 31) / 1024 + 40;
  Inputs few(40, 8, 128, at::kBFloat16);
  Inputs all = few;
  all.a = at::zeros({N, 8, 128}, few.a.options());
  all.a.narrow(0, N - 40, 40).copy_(few.a);
  Tensors results[2];
  for (const bool whole : {true, false}) {
    const at::Tensor a = (whole ? all.a : few.a).detach().requires_grad_();
    const at::Tensor g = ops::decay_gate({.a = a,
                                          .log_rate = {few.log_rate, at::zeros_like(few.log_rate)},
                                          .bias = {few.bias, at::zeros_like(few.bias)},
                                          .rounded = rounded});
    g.backward(g.detach());
    const int64_t begin = a.size(0) - 40;
    results[whole] = {g.detach().narrow(0, begin, 40), a.grad().narrow(0, begin, 40)};
  }
  for (size_t i = 0; i < 2; ++i) CHECK(at::equal(results[0][i], results[1][i]));
}

}  // namespace osdn::test::decay_gate_cuda_test
