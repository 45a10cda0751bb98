// A reference checkpoint of another implementation against this one: config.json and weights as that code
// saves them, its logits, loss and, where it gives them, gradients (tests/golden/README.md).
#pragma once

#include <map>
#include <string>

#include "base/fs.h"
#include "checkpoint/fla_config.h"
#include "checkpoint/safetensors.h"
#include "model/lm.h"
#include "ops/linear_cross_entropy.h"
#include "optim/parameter_arena.h"
#include "tests/support/test.h"

namespace osdn::test {

struct GoldenTolerance {
  double logits;
  double gradients;  // of every parameter; 0: the file has none
};

inline void check_golden(const std::string& name, at::Device device, const GoldenTolerance& tolerance) {
  const std::string path = OSDN_SOURCE_DIR "/tests/golden/" + name;
  std::map<std::string, at::Tensor> golden;
  for (auto& [key, tensor] : checkpoint::read_safetensors(path + ".safetensors").tensors)
    golden.emplace(key, tensor);
  const std::string config_path = path + ".config.json";
  const config::Model model = checkpoint::parse_fla_config(config_path, read_file(config_path), {}).model;

  const std::vector<ParameterSpec> specs = model::parameter_specs(model, *model.vocab_size);
  optim::ParameterArena arena(specs, {.device = device, .training = true});
  size_t num_weights = 0;
  for (const ParameterSpec& spec : specs) arena.master(spec.name).copy_(golden.at("param." + spec.name));
  for (const auto& [key, tensor] : golden) num_weights += key.rfind("param.", 0) == 0;
  REQUIRE(num_weights == specs.size());
  const model::LanguageModel lm(model, *model.vocab_size, arena.source());

  const at::Tensor ids = golden.at("input_ids").to(device, at::kLong);  // [2, 130]
  const auto sequences = ops::Sequences::equal(ids.size(0), ids.size(1), device);
  {
    const at::NoGradGuard no_grad;
    model::ForwardCall call{.sequences = sequences};
    const at::Tensor logits =
        lm.logits(lm.hidden(ids.reshape({-1}), call)).view({ids.size(0), ids.size(1), *model.vocab_size});
    check_close("logits", logits, golden.at("logits"), tolerance.logits);
  }
  // Targets are the next tokens; the last position of each row has none.
  at::Tensor targets = at::full_like(ids, ops::kIgnoreTarget);
  targets.narrow(1, 0, ids.size(1) - 1).copy_(ids.narrow(1, 1, ids.size(1) - 1));
  const auto num_targets = static_cast<double>(ids.size(0) * (ids.size(1) - 1));
  model::ForwardCall call{.sequences = sequences};
  const at::Tensor loss = lm.loss(ids.reshape({-1}), targets.reshape({-1}), call) / num_targets;
  CHECK(loss.item<double>() == Approx(golden.at("loss").item<double>()).epsilon(1e-5));
  if (tolerance.gradients == 0) return;
  torch::autograd::backward({loss}, {});
  for (const ParameterSpec& spec : specs)
    check_close(spec.name, arena.gradient(spec.name), golden.at("grad." + spec.name), tolerance.gradients);
}

}  // namespace osdn::test
