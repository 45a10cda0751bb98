// The delta rule and the preconditioner scan in a CUDA graph: forward and backward record, replay with the
// bits of an eager call, and make the host wait for nothing.
#include <vector>

#include "ops/precond_scan.h"
#include "tensor/device_graph.h"
#include "tests/ops/delta_rule_device.h"

namespace osdn::ops::delta_rule_graph_test {

using delta_rule_device::draw;
using delta_rule_device::kGpu;
using delta_rule_test::Decay;
using delta_rule_test::to_string;

struct Layer {
  DeltaRuleArgs rule;
  PrecondScanArgs scan;  // with preconditioner
  bool preconditioned = false;
  at::Tensor d_o, d_final;

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> list;
    for (const auto& [name, x] : delta_rule_test::inputs(rule)) list.push_back(x);
    if (preconditioned) list.push_back(scan.initial_scale.value);
    return list;
  }
  /// Outputs, then the gradients.
  std::vector<at::Tensor> run() const {
    DeltaRuleArgs args = rule;
    if (preconditioned) args.write_key = precond_scan(scan).write_key;
    const DeltaRuleOutput out = delta_rule(args);
    std::vector<at::Tensor> results = {out.o.detach(), out.final_state.detach()};
    for (const at::Tensor& gradient :
         torch::autograd::grad({out.o, out.final_state}, leaves(), {d_o, d_final}))
      results.push_back(gradient);
    return results;
  }
};

Layer make_layer(Decay decay, bool preconditioned, at::ScalarType dtype) {
  Layer layer;
  layer.rule = draw({.offsets = {0, 100, 100, 333, 334},
                     .H = 2,
                     .HV = 2,
                     .K = 128,
                     .V = 128,
                     .decay = decay,
                     .dtype = dtype});
  layer.preconditioned = preconditioned;
  layer.scan = {.k = layer.rule.k, .beta = layer.rule.beta, .sequences = layer.rule.sequences};
  layer.scan.initial_scale.value =
      at::ones({2, 128}, layer.rule.beta.options().requires_grad(false)).set_requires_grad(true);
  layer.d_o = at::randn(layer.rule.v.sizes(), layer.rule.v.options().requires_grad(false));
  layer.d_final = at::randn({4, 2, 128, 128}, layer.rule.beta.options().requires_grad(false));
  return layer;
}

TEST_CASE("forward and backward replayed from a graph have the bits of an eager call, on new inputs too",
          "[delta_rule_graph][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const bool preconditioned = GENERATE(false, true);
  CAPTURE(to_string(decay), preconditioned);
  const Layer layer = make_layer(decay, preconditioned, at::kBFloat16);
  std::vector<at::Tensor> recorded;
  DeviceGraph graph;
  graph.capture([&] { recorded = layer.run(); });
  for (int round = 0; round < 3; ++round) {
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor x : {layer.rule.q, layer.rule.v}) x.mul_(1 - 0.1 * round);
    }
    graph.replay();
    const std::vector<at::Tensor> eager = layer.run();
    REQUIRE(eager.size() == recorded.size());
    for (size_t i = 0; i < eager.size(); ++i) {
      CAPTURE(round, i);
      CHECK(at::equal(eager[i], recorded[i]));
    }
  }
}

TEST_CASE("forward and backward never make the host wait for the GPU", "[delta_rule_graph][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kFloat);
  CAPTURE(to_string(decay), c10::toString(dtype));
  const Layer layer = make_layer(decay, true, dtype);
  layer.run();  // makes the tables of the pack
  const ForbidSynchronization forbid;
  layer.run();
}

TEST_CASE("the guard against waiting notices it", "[delta_rule_graph][cuda]") {
  const at::Tensor x = at::ones({1}, at::TensorOptions().device(kGpu));
  const ForbidSynchronization forbid;
  CHECK_THROWS_AS(x.item<float>(), std::exception);
}

TEST_CASE("decoding steps replayed from a graph have the bits of eager ones", "[delta_rule_graph][cuda]") {
  const Decay decay = GENERATE(Decay::kNone, Decay::kScalar, Decay::kChannel);
  const at::NoGradGuard no_grad;
  const DeltaRuleArgs args = draw(
      {.offsets = {0, 1, 2, 2, 3}, .H = 2, .HV = 4, .K = 128, .V = 128, .decay = decay, .write_key = true});
  DeltaRuleOutput recorded;
  DeviceGraph graph;
  graph.capture([&] { recorded = delta_rule(args); });
  graph.replay();
  const DeltaRuleOutput eager = delta_rule(args);
  CHECK(at::equal(recorded.o, eager.o));
  CHECK(at::equal(recorded.final_state, eager.final_state));
}

}  // namespace osdn::ops::delta_rule_graph_test
