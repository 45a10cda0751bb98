#include "model/lm.h"

#include <map>
#include <set>

#include "config/yaml.h"
#include "model/init.h"
#include "ops/residual_stats.h"
#include "optim/adamw.h"
#include "tests/model/small_model.h"
#include "tests/support/test.h"

namespace osdn::model {
namespace {

using test::SmallModel;

config::Model delta_net_340m() { return {}; }

config::Model delta_net_1b() {
  config::Model model;
  model.hidden_size = 2048;
  model.num_heads = 16;
  return model;
}

int64_t count(config::Model model, std::optional<config::Osdn> osdn) {
  model.osdn = osdn;
  return count_parameters(parameter_specs(model, 32000));
}

config::Osdn apf() {
  config::Osdn osdn;
  osdn.retention = config::Retention::kOwnGate;
  return osdn;
}

TEST_CASE("parameter counts are the peer's to the last one", "[lm]") {
  CHECK(count(delta_net_340m(), {}) == 374'362'112);
  CHECK(count(delta_net_1b(), {}) == 1'365'677'056);
  // d0: heads x head_dim a layer.
  CHECK(count(delta_net_340m(), config::Osdn{}) == 374'386'688);
  CHECK(count(delta_net_1b(), config::Osdn{}) == 1'365'677'056 + 24 * 16 * 128);
  // The gate: hidden x heads + heads a layer.
  CHECK(count(delta_net_340m(), apf()) == 374'386'688 + 196'800);
  CHECK(count(delta_net_1b(), apf()) == 1'365'677'056 + 24 * 16 * 128 + 24 * (2048 * 16 + 16));
}

TEST_CASE("a tied model counts its embedding once and has no head of its own", "[lm]") {
  config::Model tied = delta_net_340m();
  tied.tie_embeddings = true;
  CHECK(count(tied, {}) == 341'594'112);
}

TEST_CASE("tensor names and shapes are those of the peer's checkpoints", "[lm]") {
  config::Model model = delta_net_340m();
  model.num_layers = 1;
  model.osdn = apf();
  std::set<std::string> found;
  for (const ParameterSpec& spec : parameter_specs(model, 32000))
    found.insert(spec.name + " " + c10::str(at::IntArrayRef(spec.shape)));
  CHECK(found == std::set<std::string>{
                     "model.embeddings.weight [32000, 1024]",
                     "model.layers.0.attn_norm.weight [1024]",
                     "model.layers.0.attn.q_proj.weight [1024, 1024]",
                     "model.layers.0.attn.k_proj.weight [1024, 1024]",
                     "model.layers.0.attn.v_proj.weight [1024, 1024]",
                     "model.layers.0.attn.b_proj.weight [8, 1024]",
                     "model.layers.0.attn.q_conv1d.weight [1024, 1, 4]",
                     "model.layers.0.attn.k_conv1d.weight [1024, 1, 4]",
                     "model.layers.0.attn.v_conv1d.weight [1024, 1, 4]",
                     "model.layers.0.attn.initial_scale [8, 128]",
                     "model.layers.0.attn.osgm_a_proj.weight [8, 1024]",
                     "model.layers.0.attn.osgm_a_proj.bias [8]",
                     "model.layers.0.attn.o_norm.weight [128]",
                     "model.layers.0.attn.o_proj.weight [1024, 1024]",
                     "model.layers.0.mlp_norm.weight [1024]",
                     "model.layers.0.mlp.gate_proj.weight [2816, 1024]",
                     "model.layers.0.mlp.up_proj.weight [2816, 1024]",
                     "model.layers.0.mlp.down_proj.weight [1024, 2816]",
                     "model.norm.weight [1024]",
                     "lm_head.weight [32000, 1024]",
                 });
}

TEST_CASE("decay touches projections, convolutions, embedding and head only", "[lm]") {
  config::Model model = delta_net_340m();
  model.num_layers = 1;
  model.osdn = apf();
  std::set<std::string> exempt;
  for (const ParameterSpec& spec : parameter_specs(model, 100))
    if (!spec.decay) exempt.insert(spec.name);
  CHECK(exempt ==
        std::set<std::string>{"model.layers.0.attn_norm.weight", "model.layers.0.attn.initial_scale",
                              "model.layers.0.attn.osgm_a_proj.weight",
                              "model.layers.0.attn.osgm_a_proj.bias", "model.layers.0.attn.o_norm.weight",
                              "model.layers.0.mlp_norm.weight", "model.norm.weight"});
}

TEST_CASE("d0 and the gate start as specified, not by the generic rule", "[lm]") {
  config::Model model = delta_net_340m();
  model.num_layers = 1;
  model.osdn = apf();
  for (const ParameterSpec& spec : parameter_specs(model, 100)) {
    at::Tensor values = at::full(spec.shape, std::nan(""), at::kFloat);
    initialize(spec, 42, values);
    if (spec.name.find("initial_scale") != std::string::npos) CHECK(values.eq(1.0f).all().item<bool>());
    if (spec.name.find("osgm_a_proj.weight") != std::string::npos) CHECK(values.eq(0.0f).all().item<bool>());
    if (spec.name.find("osgm_a_proj.bias") != std::string::npos) CHECK(values.eq(6.9f).all().item<bool>());
    if (spec.name.find("norm") != std::string::npos) CHECK(values.eq(1.0f).all().item<bool>());
    if (spec.name.find("q_proj") != std::string::npos) {
      CHECK(values.mean().item<double>() == Approx(0.0).margin(1e-4));
      CHECK(values.std().item<double>() == Approx(0.02).epsilon(5e-3));
    }
  }
}

TEST_CASE("training FLOPs of a token follow the published counts", "[lm]") {
  const auto flops = [](const config::Model& model) { return training_flops_per_token(model, 32000, 2048); };
  config::Model gated = delta_net_340m();
  gated.backbone = config::Backbone::kGatedDeltaNet;
  gated.num_layers = 21;
  gated.num_heads = 6;
  gated.head_dim = 256;
  config::Model kda = delta_net_340m();
  kda.backbone = config::Backbone::kKda;
  CHECK(flops(delta_net_340m()) == Approx(2.15e9).epsilon(3e-3));
  CHECK(flops(delta_net_1b()) == Approx(8.01e9).epsilon(3e-3));
  CHECK(flops(gated) == Approx(3.26e9).epsilon(3e-3));
  CHECK(flops(kda) == Approx(2.23e9).epsilon(3e-3));
  // The input embedding is a look-up: tying it to the head changes no multiplication.
  config::Model tied = delta_net_340m();
  tied.tie_embeddings = true;
  CHECK(flops(tied) == flops(delta_net_340m()));
}

TEST_CASE("a document sees nothing of the one before it", "[lm]") {
  for (const test::Variant& variant : test::variants()) {
    INFO(variant.name);
    const SmallModel small(variant.model);
    const at::Tensor ids = test::random_ids(128, 7);
    const auto run = [&](const at::Tensor& tokens, std::vector<int64_t> offsets) {
      const at::NoGradGuard no_grad;
      ForwardCall call{.sequences = ops::Sequences::make(std::move(offsets), at::kCPU)};
      return small.model().logits(small.model().hidden(tokens, call));
    };
    const at::Tensor packed = run(ids, {0, 37, 128});
    at::Tensor changed = ids.clone();
    changed[36] = (changed[36] + 1) % test::kSmallVocab;
    CHECK(run(changed, {0, 37, 128}).narrow(0, 37, 91).equal(packed.narrow(0, 37, 91)));
    test::check_close("alone", run(ids.narrow(0, 37, 91), {0, 91}), packed.narrow(0, 37, 91), 1e-5);
  }
}

TEST_CASE("recomputation changes neither loss nor any gradient by a bit", "[lm]") {
  const config::Model model = GENERATE(test::small_config(true, true), test::small_gated_delta_net(),
                                       test::small_kda(), test::small_transformer());
  const at::Tensor ids = test::random_ids(96, 3);
  const at::Tensor targets = test::random_ids(96, 4);
  std::vector<at::Tensor> gradients;
  std::vector<double> losses;
  for (const auto recompute :
       {config::Recompute::kNone, config::Recompute::kMixer, config::Recompute::kBlock}) {
    SmallModel small(model);
    ForwardCall call{.sequences = ops::Sequences::make({0, 50, 96}, at::kCPU), .recompute = recompute};
    const at::Tensor loss = small.model().loss(ids, targets, call);
    torch::autograd::backward({loss}, {});
    losses.push_back(loss.item<double>());
    gradients.push_back(small.arena().gradients().clone());
  }
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0] == losses[2]);
  CHECK(gradients[0].abs().max().item<double>() > 0);
  CHECK(gradients[0].equal(gradients[1]));
  CHECK(gradients[0].equal(gradients[2]));
}

TEST_CASE("gradients accumulate over micro-batches to those of the joint batch", "[lm]") {
  const at::Tensor ids = test::random_ids(64, 3);
  const at::Tensor targets = test::random_ids(64, 4);
  SmallModel joint(test::small_config(true, false));
  ForwardCall call{.sequences = ops::Sequences::make({0, 32, 64}, at::kCPU)};
  torch::autograd::backward({joint.model().loss(ids, targets, call)}, {});
  SmallModel split(test::small_config(true, false));
  for (int64_t part = 0; part < 2; ++part) {
    ForwardCall half{.sequences = ops::Sequences::make({0, 32}, at::kCPU)};
    torch::autograd::backward(
        {split.model().loss(ids.narrow(0, 32 * part, 32), targets.narrow(0, 32 * part, 32), half)}, {});
  }
  test::check_close("gradients", split.arena().gradients(), joint.arena().gradients(), 1e-5);
}

TEST_CASE("every trained parameter receives a gradient", "[lm]") {
  SmallModel small(test::small_config(true, true));
  ForwardCall call{.sequences = ops::Sequences::make({0, 64}, at::kCPU)};
  torch::autograd::backward({small.model().loss(test::random_ids(64, 1), test::random_ids(64, 2), call)}, {});
  for (const auto& slot : small.arena().slots()) {
    INFO(slot.spec.name);
    CHECK(small.arena().gradient(slot.spec.name).abs().max().item<double>() > 0);
  }
}

TEST_CASE("a token without any signal leaves every backbone finite", "[lm]") {
  // Its q, k and v are 0: normalisation, gates and the OSDN scan meet the zero vector, in whole documents of
  // it.
  for (const test::Variant& variant : test::variants()) {
    INFO(variant.name);
    SmallModel small(variant.model);
    small.arena().master("model.embeddings.weight")[7].zero_();
    at::Tensor ids = test::random_ids(80, 1);
    ids.narrow(0, 0, 20).fill_(7);
    ids[50] = 7;
    ForwardCall call{.sequences = ops::Sequences::make({0, 20, 80}, at::kCPU), .collect_statistics = true};
    const at::Tensor loss = small.model().loss(ids, test::random_ids(80, 2), call);
    torch::autograd::backward({loss}, {});
    CHECK(at::isfinite(loss).item<bool>());
    CHECK(at::isfinite(small.arena().gradients()).all().item<bool>());
    for (const at::Tensor& layer : call.statistics) CHECK(!at::isnan(layer).any().item<bool>());
  }
}

TEST_CASE("a step without gradients shrinks exactly the parameters that decay", "[lm]") {
  for (const test::Variant& variant : test::variants()) {
    INFO(variant.name);
    SmallModel small(variant.model);
    std::map<std::string, at::Tensor> before;
    for (const auto& slot : small.arena().slots())
      before[slot.spec.name] = small.arena().master(slot.spec.name).clone();
    small.arena().zero_gradients();
    optim::adamw_step(small.arena(), {.weight_decay = 0.1}, 0.1, 1, 1.0);
    for (const auto& slot : small.arena().slots()) {
      const std::string& name = slot.spec.name;
      INFO(name);
      const bool is_matrix = name.find("_proj") != std::string::npos ||
                             name.find("conv1d") != std::string::npos || name == "model.embeddings.weight" ||
                             name == "lm_head.weight";
      const bool decays = is_matrix && name.find(".bias") == std::string::npos &&
                          name.find("osgm_a_proj") == std::string::npos;
      const at::Tensor after = small.arena().master(name);
      if (decays)
        test::check_close("shrunk", after, before[name] * 0.99, 1e-6);
      else
        CHECK(at::equal(after, before[name]));
    }
  }
}

/// Statistics of all layers, added up, of a model on random tokens.
std::vector<double> residuals(const config::Model& model) {
  const SmallModel small(model);
  const at::NoGradGuard no_grad;
  ForwardCall call{.sequences = ops::Sequences::make({0, 128}, at::kCPU), .collect_statistics = true};
  small.model().hidden(test::random_ids(128, 5), call);
  const at::Tensor sum = at::stack(call.statistics).sum(0);
  return {sum.data_ptr<double>(), sum.data_ptr<double>() + ops::kNumResidualTerms};
}

TEST_CASE("a plain model reports q_geo equal to q_geo_plain, the beta-aware rule lowers it", "[lm]") {
  for (const test::Variant& variant : test::variants()) {
    if (variant.model.backbone == config::Backbone::kTransformer) continue;
    INFO(variant.name);
    const std::vector<double> terms = residuals(variant.model);
    const double layers = variant.model.attention.layers.empty() ? 2 : 1;
    CHECK(terms[ops::kResidualCount] ==
          128 * layers * static_cast<double>(config::num_value_heads(variant.model)));
    const double q = terms[ops::kResidualLogSum];
    const double plain = terms[ops::kResidualLogSumPlain];
    if (!variant.model.osdn)
      CHECK(q == plain);
    else if (variant.model.osdn->retention == config::Retention::kNone)
      CHECK(q < plain);
  }
}

TEST_CASE("every preset trains on the backbone that it is for", "[lm]") {
  const std::vector<std::pair<std::string, config::Model>> uses = {
      {"osdn", test::small_config(false, false)},
      {"osdn_apf", test::small_config(false, false)},
      {"osdn_authors_run2", test::small_config(false, false)},
      {"osdn_apf_authors", test::small_config(false, false)},
      {"osdn_authors_may", test::small_config(false, false)},
      {"os_gdn", test::small_gated_delta_net()},
      {"os_gdn_apf_stategate", test::small_gated_delta_net()},
      {"os_gdn_apf_own", test::small_gated_delta_net()},
      {"os_kda_detach", test::small_kda()},
      {"os_kda_apf", test::small_kda()},
  };
  for (const auto& [preset, plain] : uses) {
    INFO(preset);
    config::Model model = plain;
    model.osdn =
        config::load_text("model: {backbone: kda, osdn: {preset: " + preset + "}}\n", "test", {}).model.osdn;
    SmallModel small(model);
    ForwardCall call{.sequences = ops::Sequences::make({0, 30, 96}, at::kCPU), .collect_statistics = true};
    const at::Tensor loss = small.model().loss(test::random_ids(96, 1), test::random_ids(96, 2), call);
    torch::autograd::backward({loss}, {});
    CHECK(at::isfinite(small.arena().gradients()).all().item<bool>());
    const at::Tensor strength = at::stack(call.statistics).select(1, ops::kResidualStrengthMax).max();
    CHECK(strength.item<double>() <= std::min(2.0, model.osdn->box[1]));
    for (const auto& slot : small.arena().slots()) {
      if (!slot.spec.trainable) continue;
      INFO(slot.spec.name);
      // Detached from d, its start and its gate learn nothing.
      const bool learns = !model.osdn->detach || slot.spec.name.find("initial_scale") == std::string::npos;
      CHECK((small.arena().gradient(slot.spec.name).abs().max().item<double>() > 0) == learns);
    }
  }
}

TEST_CASE("forgetting draws d down, anchored forgetting draws it to 1", "[lm]") {
  for (const config::Model& plain :
       {test::small_config(false, false), test::small_gated_delta_net(), test::small_kda()}) {
    const auto mean_of_d = [&](config::Retention retention, bool anchored) {
      config::Model model = test::with_osdn(plain, retention);
      model.osdn->anchored = anchored;
      const std::vector<double> terms = residuals(model);
      return terms[ops::kResidualScaleSum] / terms[ops::kResidualScaleCount];
    };
    const double kept = mean_of_d(config::Retention::kNone, false);
    const double anchored = mean_of_d(config::Retention::kConstant, true);
    const double forgotten = mean_of_d(config::Retention::kConstant, false);
    INFO(kept << " " << anchored << " " << forgotten);
    CHECK(kept > 1);
    CHECK(forgotten < 1);
    CHECK(anchored > 1);
    CHECK(anchored < kept);
  }
}

}  // namespace
}  // namespace osdn::model
