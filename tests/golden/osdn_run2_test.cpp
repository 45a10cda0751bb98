// A small DeltaNet with the paper authors' preconditioner (beta-free rule, eta 1, box [0, 2], learned start),
// weights, logits, loss and gradients computed in fp32 by the authors' own code: tests/golden/README.md.
#include <map>

#include "checkpoint/safetensors.h"
#include "model/lm.h"
#include "ops/linear_cross_entropy.h"
#include "optim/parameter_arena.h"
#include "tests/support/test.h"

namespace osdn {
namespace {

config::Model authors_model() {
  config::Model model;
  model.hidden_size = 64;
  model.num_layers = 2;
  model.num_heads = 2;
  model.head_dim = 32;
  model.osdn = config::Osdn{};
  model.osdn->box = {0.0, 2.0};
  model.osdn->hypergradient = config::Hypergradient::kBetaFree;
  model.osdn->clamp_initial_scale = false;
  model.osdn->allow_unstable = true;
  return model;
}

struct Golden {
  std::map<std::string, at::Tensor> tensors;
  const at::Tensor& operator[](const std::string& name) const { return tensors.at(name); }
};

Golden load_golden() {
  Golden golden;
  for (auto& [name, tensor] :
       checkpoint::read_safetensors(OSDN_SOURCE_DIR "/tests/golden/osdn_run2.safetensors").tensors)
    golden.tensors.emplace(name, tensor);
  return golden;
}

void check_golden(at::Device device) {
  constexpr int64_t kVocab = 128;
  const Golden golden = load_golden();
  const config::Model config = authors_model();
  const auto specs = model::parameter_specs(config, kVocab);
  optim::ParameterArena arena(specs, {.device = device});
  for (const ParameterSpec& spec : specs) arena.master(spec.name).copy_(golden["param." + spec.name]);
  const model::LanguageModel lm(config, kVocab, arena.source());

  const at::Tensor ids = golden["input_ids"].to(device, at::kLong);  // [2, 130]
  const auto sequences = ops::Sequences::equal(ids.size(0), ids.size(1), device);
  {
    const at::NoGradGuard no_grad;
    model::ForwardCall call{.sequences = sequences};
    const at::Tensor logits =
        lm.logits(lm.hidden(ids.reshape({-1}), call)).view({ids.size(0), ids.size(1), kVocab});
    // The authors' kernels evaluate in fp32 with other summation orders: 8.8e-7 was seen for a float64
    // recurrence.
    test::check_close("logits", logits, golden["logits"], 1e-4);
  }
  // Targets are the next tokens; the last position of each row has none.
  at::Tensor targets = at::full_like(ids, ops::kIgnoreTarget);
  targets.narrow(1, 0, ids.size(1) - 1).copy_(ids.narrow(1, 1, ids.size(1) - 1));
  const auto num_targets = static_cast<double>(ids.size(0) * (ids.size(1) - 1));
  model::ForwardCall call{.sequences = sequences};
  const at::Tensor loss = lm.loss(ids.reshape({-1}), targets.reshape({-1}), call) / num_targets;
  CHECK(loss.item<double>() == Approx(golden["loss"].item<double>()).epsilon(1e-5));
  torch::autograd::backward({loss}, {});
  for (const ParameterSpec& spec : specs)
    test::check_close(spec.name, arena.gradient(spec.name), golden["grad." + spec.name], 1e-3);
}

TEST_CASE("the authors' weights give the authors' logits, loss and every gradient", "[osdn_run2]") {
  check_golden(at::kCPU);
}

TEST_CASE("the authors' weights give the authors' logits, loss and every gradient on the GPU",
          "[osdn_run2][cuda]") {
  check_golden(at::kCUDA);
}

}  // namespace
}  // namespace osdn
