// One training micro-batch of a shipped configuration, whole and by part: forward and backward of the model,
// and of the layer's own ops at its shapes, all layers together, so that the rows add up to shares of the
// step.
#include <cmath>
#include <memory>
#include <string>

#include "apps/bench/case.h"
#include "config/yaml.h"
#include "model/init.h"
#include "model/lm.h"
#include "ops/delta_rule.h"
#include "ops/precond_scan.h"
#include "ops/short_conv.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "tests/bench/differentiable.h"
#include "tests/bench/shipped_config.h"

namespace osdn::bench {
namespace {

struct StepSetup {
  config::Config config;
  int64_t rows = 0;  // sequences of the micro-batch
  std::unique_ptr<optim::ParameterArena> arena;
  std::unique_ptr<model::LanguageModel> model;
  at::Tensor ids;      // [rows * T]
  at::Tensor targets;  // [rows * T]
  ops::SequencesPtr sequences;
};

std::shared_ptr<StepSetup> make_setup(const std::string& file, int64_t vocab_size, int64_t rows,
                                      int64_t length, at::Device device) {
  auto setup = std::make_shared<StepSetup>();
  setup->config = config::load(shipped_config(file), {});
  setup->rows = rows;
  const config::Model& model = setup->config.model;
  setup->arena = std::make_unique<optim::ParameterArena>(
      model::parameter_specs(model, vocab_size),
      optim::ParameterArena::Options{.device = device, .compute = training_dtype(device)});
  for (const auto& slot : setup->arena->slots()) {
    at::Tensor values = at::empty(slot.spec.shape, at::kFloat);
    model::initialize(slot.spec, 42, values);
    setup->arena->master(slot.spec.name).copy_(values);
  }
  setup->arena->refresh_compute_copy();
  setup->model = std::make_unique<model::LanguageModel>(model, vocab_size, setup->arena->source());
  at::manual_seed(1);
  setup->ids = at::randint(0, vocab_size, {rows * length}, at::kLong).to(device);
  setup->targets = at::randint(0, vocab_size, {rows * length}, at::kLong).to(device);
  setup->sequences = ops::Sequences::equal(rows, length, device);
  return setup;
}

double run_step(StepSetup& setup) {
  model::ForwardCall call{.sequences = setup.sequences};
  const at::Tensor loss =
      setup.model->loss(setup.ids, setup.targets, call) / static_cast<double>(setup.ids.numel());
  torch::autograd::backward({loss}, {});
  const double norm = optim::gradient_norm(*setup.arena);
  optim::adamw_step(*setup.arena, {}, 1e-4, 1, optim::clip_factor(norm, 1.0));
  setup.arena->zero_gradients();
  return norm;
}

/// A part of the step: `layers` calls of an op, each forward and backward, on inputs of its own.
Case part(const Case& whole, const std::string& name, int64_t layers, const std::function<at::Tensor()>& op) {
  Case made = whole;
  made.pass = name;
  made.flop = 0;
  made.error = [] { return 0.0; };
  made.run = [layers, op] {
    for (int64_t layer = 0; layer < layers; ++layer) op().sum().backward();
  };
  return made;
}

std::vector<Case> step_cases(at::Device device) {
  const bool gpu = device.is_cuda();
  const int64_t length = gpu ? 2048 : 256;
  const int64_t rows = gpu ? 4 : 8;
  const int64_t vocab_size = gpu ? 32000 : 2048;
  const std::string file = gpu ? "osdn_delta_net_340m.yaml" : "quickstart.yaml";
  const auto setup = make_setup(file, vocab_size, rows, length, device);
  const config::Model& model = setup->config.model;
  const int64_t tokens = rows * length;

  Case whole;
  whole.shape = file + " " + std::to_string(rows) + " x " + std::to_string(length);
  whole.pass = "whole step";
  whole.dtype = training_dtype(device);
  whole.device = device;
  whole.flop = model::training_flops_per_token(model, vocab_size, length) * static_cast<double>(tokens);
  whole.tolerance = 0.5;
  whole.error = [setup] { return std::isfinite(run_step(*setup)) ? 0.0 : 1.0; };
  whole.run = [setup] { run_step(*setup); };

  const int64_t H = model.num_heads;
  const int64_t K = model.head_dim;
  const at::ScalarType dtype = whole.dtype;
  const auto leaf = [&](at::IntArrayRef shape, uint64_t seed) {
    return random(shape, dtype, device, seed).requires_grad_(true);
  };
  const at::Tensor q = leaf({tokens, H, K}, 1);
  const at::Tensor k = leaf({tokens, H, K}, 2);
  const at::Tensor v = leaf({tokens, H, K}, 3);
  const at::Tensor w = leaf({tokens, H, K}, 4);
  const at::Tensor beta = random({tokens, H}, at::kFloat, device, 5).sigmoid().requires_grad_(true);
  const at::Tensor d0 = at::ones({H, K}, at::TensorOptions().device(device));
  const at::Tensor d0_sink = at::zeros_like(d0);
  const at::Tensor x = leaf({tokens, 3 * H * K}, 6);
  const at::Tensor taps = random({3 * H * K, 1, model.conv_size}, dtype, device, 7);
  const at::Tensor taps_sink = at::zeros(taps.sizes(), d0.options());
  const auto sequences = setup->sequences;
  std::vector<Case> cases = {whole};
  cases.push_back(part(whole, "delta_rule, all layers", model.num_layers, [=] {
    return ops::delta_rule({.q = q, .k = k, .v = v, .beta = beta, .write_key = w, .sequences = sequences}).o;
  }));
  cases.push_back(part(whole, "precond_scan, all layers", model.num_layers, [=] {
    return ops::precond_scan({.k = k, .beta = beta, .initial_scale = {d0, d0_sink}, .sequences = sequences})
        .write_key;
  }));
  cases.push_back(part(whole, "short_conv, all layers", model.num_layers, [=] {
    return ops::short_conv({.x = x, .weight = {taps, taps_sink}, .sequences = sequences}).y;
  }));
  return cases;
}

const Registrar kStep("step", step_cases);

}  // namespace
}  // namespace osdn::bench
