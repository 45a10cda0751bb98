// What every backbone passes, written once; each backbone's own test file calls it for its variants.
#pragma once

#include <string>
#include <vector>

#include "ops/linear_cross_entropy.h"
#include "tests/model/reference_model.h"
#include "tests/model/small_model.h"
#include "tests/support/test.h"

namespace osdn::test {

/// The variants whose name begins so.
inline std::vector<Variant> variants_of(const std::string& backbone) {
  std::vector<Variant> chosen;
  for (const Variant& variant : variants())
    if (variant.name.rfind(backbone, 0) == 0) chosen.push_back(variant);
  return chosen;
}

/// Other values for all that starts as a constant, so that nothing cancels.
inline void scatter_constants(SmallModel& small) {
  uint64_t seed = 100;
  for (const auto& slot : small.arena().slots()) {
    if (slot.spec.initializer != Initializer::kConstant) continue;
    at::manual_seed(seed++);
    const at::Tensor master = small.arena().master(slot.spec.name);
    master.add_((at::randn(slot.spec.shape, at::kFloat) * 0.1).to(master.device()));
  }
  small.arena().refresh_compute_copy();
}

/// Logits, loss and every gradient of two packed documents against the token recurrence in float64.
inline void check_against_recurrence(const Variant& variant) {
  INFO(variant.name);
  SmallModel small(variant.model);
  scatter_constants(small);
  ReferenceModel::Weights weights;
  for (const auto& slot : small.arena().slots())
    weights[slot.spec.name] =
        small.arena().master(slot.spec.name).to(at::kDouble).clone().set_requires_grad(true);
  const ReferenceModel reference(variant.model, weights);

  constexpr int64_t kCut = 9;
  constexpr int64_t kTokens = 40;
  const at::Tensor ids = random_ids(kTokens, 11);
  const at::Tensor targets = random_ids(kTokens, 12);
  model::ForwardCall call{.sequences = ops::Sequences::make({0, kCut, kTokens}, at::kCPU)};
  const at::Tensor loss = small.model().loss(ids, targets, call);
  torch::autograd::backward({loss}, {});

  const at::Tensor expected = at::cat(
      {reference.logits(ids.narrow(0, 0, kCut)), reference.logits(ids.narrow(0, kCut, kTokens - kCut))});
  const at::Tensor expected_loss = -at::log_softmax(expected, 1).gather(1, targets.unsqueeze(1)).sum();
  expected_loss.backward();

  // float32 against float64: roundings of some thousand products.
  {
    const at::NoGradGuard no_grad;
    model::ForwardCall again{.sequences = call.sequences};
    check_close("logits", small.model().logits(small.model().hidden(ids, again)), expected, 2e-5);
  }
  CHECK(loss.item<double>() == Approx(expected_loss.item<double>()).epsilon(1e-5));
  for (const auto& [name, weight] : reference.weights()) {
    check_close(name, small.arena().gradient(name), weight.grad(), 2e-4);
    CHECK(weight.grad().abs().max().item<double>() > 0);
  }
}

/// OSDN with a step of 0 and d0 = 1 is the plain backbone.
inline void check_no_step_is_plain(const config::Model& plain) {
  config::Model still = with_osdn(plain, config::Retention::kNone);
  still.osdn->step_size = 0;
  const SmallModel a(plain, at::kCPU, /*training=*/false);
  const SmallModel b(still, at::kCPU, /*training=*/false);
  const at::Tensor ids = random_ids(150, 3);
  const at::NoGradGuard no_grad;
  model::ForwardCall first{.sequences = ops::Sequences::make({0, 70, 150}, at::kCPU)};
  model::ForwardCall second{.sequences = first.sequences};
  CHECK(at::equal(a.model().hidden(ids, first), b.model().hidden(ids, second)));
}

/// The same loss and gradients on this device in this dtype as on the CPU in float32.
inline void check_on_device(const Variant& variant, at::Device of_device, at::ScalarType compute,
                            double loss_tolerance, double tolerance) {
  INFO(variant.name << " " << c10::toString(compute));
  const at::Tensor ids = random_ids(200, 5);
  const at::Tensor targets = random_ids(200, 6);
  const auto run = [&](SmallModel& small, at::Device device) {
    scatter_constants(small);
    model::ForwardCall call{.sequences = ops::Sequences::make({0, 70, 200}, device),
                            .collect_statistics = true};
    const at::Tensor loss = small.model().loss(ids.to(device), targets.to(device), call);
    torch::autograd::backward({loss}, {});
    return loss.item<double>();
  };
  SmallModel host(variant.model);
  const double expected = run(host, at::kCPU);
  SmallModel device(variant.model, of_device, /*training=*/true, compute);
  CHECK(run(device, of_device) == Approx(expected).epsilon(loss_tolerance));
  check_close("all gradients", device.arena().gradients(), host.arena().gradients(), tolerance);
}

/// bf16 keeps 8 bits of every activation, which the recurrence of a random model carries on.
inline void check_in_bf16(const Variant& variant, at::Device device) {
  check_on_device(variant, device, at::kBFloat16, 1e-2, 0.2);
}

/// On the GPU, in float32, which differs by the order of sums, and roughly in bf16.
inline void check_on_cuda(const Variant& variant) {
  check_on_device(variant, at::kCUDA, at::kFloat, 1e-5, 2e-3);
  check_in_bf16(variant, at::kCUDA);
}

/// The names and shapes of layer 0's mixer, "name [rows, columns]", below attn.
inline std::vector<std::string> mixer_tensors(config::Model config, int64_t layer = 0) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".attn.";
  std::vector<std::string> names;
  for (const ParameterSpec& spec : model::parameter_specs(config, kSmallVocab))
    if (spec.name.rfind(prefix, 0) == 0)
      names.push_back(spec.name.substr(prefix.size()) + " " + c10::str(at::IntArrayRef(spec.shape)));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace osdn::test
