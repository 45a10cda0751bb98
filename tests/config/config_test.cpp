// Derived values, combinations, presets.
#include "config/config.h"

#include "config/detail/presets.h"
#include "tests/config/config_support.h"
#include "tests/support/catch.h"

namespace osdn::config::test {

TEST_CASE("the SwiGLU width follows the peer's rule", "[config]") {
  Model model;
  CHECK(intermediate_size(model) == 2816);
  model.hidden_size = 2048;
  CHECK(intermediate_size(model) == 5632);
  model.hidden_size = 96;
  CHECK(intermediate_size(model) == 256);
  model.hidden_size = 97;  // floor(97 * 8 / 3) = 258
  CHECK(intermediate_size(model) == 512);
  model.intermediate_size = 300;
  CHECK(intermediate_size(model) == 300);
}

TEST_CASE("the default configuration is valid", "[config]") { CHECK(validation_error(Config{}).empty()); }

TEST_CASE("impossible combinations are refused by key", "[config]") {
  const auto error_of = [](auto change) {
    Config config;
    config.model.osdn.emplace();
    change(config);
    return validation_error(config);
  };
  CHECK(error_of([](Config&) {}).empty());
  CHECK(contains(error_of([](Config& c) { c.model.num_heads = 7; }),
                 "model.hidden_size: expected num_heads x head_dim = 7 x 128 = 896"));
  CHECK(contains(error_of([](Config& c) { c.model.osdn->retention = Retention::kStateGate; }),
                 "model.osdn.retention: "));
  CHECK(contains(error_of([](Config& c) {
                   c.model.osdn->box = {1.5, 0.5};
                 }),
                 "model.osdn.box: expected [smallest, largest]"));
  CHECK(contains(error_of([](Config& c) { c.model.osdn->anchored = true; }), "model.osdn.anchored: "));
  CHECK(
      contains(error_of([](Config& c) { c.model.osdn->initial_scale = 1.6; }), "model.osdn.initial_scale: "));
  CHECK(contains(error_of([](Config& c) { c.run.name = "a/b"; }), "run.name: "));
  CHECK(
      contains(error_of([](Config& c) { c.train.global_batch_tokens = 4097; }), "(nearest: 4096 and 8192)"));
  CHECK(contains(error_of([](Config& c) { c.train.micro_batch_sequences = 3; }),
                 "expected a divisor of the 128 sequences"));
  CHECK(contains(error_of([](Config& c) {
                   c.prepare.builtin = true;
                   c.prepare.input = {"a.txt"};
                 }),
                 "prepare.builtin: "));
  CHECK(contains(error_of([](Config& c) { c.train.steps = -1; }),
                 "train.steps: expected a positive integer up to 1e15, got -1"));
  CHECK(contains(error_of([](Config& c) { c.prepare.format = "csv"; }),
                 "prepare.format: expected auto | txt | jsonl | parquet, got \"csv\""));
}

TEST_CASE("keys of another backbone, and heads that do not fit, are refused by key", "[config]") {
  const auto error_of = [](Backbone backbone, auto change) {
    Config config;
    config.model.backbone = backbone;
    change(config.model);
    return validation_error(config);
  };
  constexpr auto kDelta = Backbone::kDeltaNet;
  constexpr auto kGated = Backbone::kGatedDeltaNet;
  constexpr auto kTransformer = Backbone::kTransformer;
  for (const Backbone backbone : {kDelta, kGated, Backbone::kKda, kTransformer})
    CHECK(error_of(backbone, [](Model&) {}).empty());
  const auto is_refused = [&](Backbone backbone, const char* key, auto change) {
    const std::string message = error_of(backbone, change);
    INFO(key << ": " << message);
    CHECK(message.rfind(std::string(key) + ": expected", 0) == 0);
  };
  is_refused(kGated, "model.qk_norm", [](Model& m) { m.qk_norm = QkNorm::kSum; });
  is_refused(kGated, "model.qk_activation", [](Model& m) { m.qk_activation = QkActivation::kElu; });
  is_refused(kGated, "model.gate_lower_bound", [](Model& m) { m.gate_lower_bound = -5; });
  is_refused(kDelta, "model.gate_low_rank", [](Model& m) { m.gate_low_rank = 16; });
  is_refused(Backbone::kKda, "model.safe_gate", [](Model& m) { m.safe_gate = true; });
  is_refused(Backbone::kKda, "model.use_gate", [](Model& m) { m.use_gate = false; });
  is_refused(Backbone::kKda, "model.gate_lower_bound", [](Model& m) { m.gate_lower_bound = 0; });
  is_refused(kTransformer, "model.osdn", [](Model& m) { m.osdn.emplace(); });
  is_refused(kTransformer, "model.value_expand", [](Model& m) { m.value_expand = 2; });
  is_refused(kTransformer, "model.attention.layers", [](Model& m) { m.attention.layers = {1}; });
  is_refused(kTransformer, "model.attention.num_kv_heads", [](Model& m) { m.attention.num_kv_heads = 3; });
  is_refused(kTransformer, "model.hidden_size", [](Model& m) { m.num_heads = 3; });
  is_refused(kDelta, "model.num_value_heads", [](Model& m) { m.num_value_heads = 16; });
  is_refused(kGated, "model.num_value_heads", [](Model& m) { m.num_value_heads = 12; });
  is_refused(kGated, "model.value_expand", [](Model& m) { m.value_expand = 0.001; });
  is_refused(kGated, "model.value_expand", [](Model& m) { m.value_expand = 1.51; });
  CHECK(error_of(kGated, [](Model& m) { m.value_expand = 0.2421875; }).empty());  // 31 of 128
  Model hundred;
  hundred.head_dim = 100;
  hundred.value_expand = 0.29;  // 28.999999999999996 in double
  CHECK(value_dim(hundred) == 29);
  is_refused(kGated, "model.attention.layers", [](Model& m) { m.attention.layers = {24}; });
  is_refused(kGated, "model.attention.layers", [](Model& m) { m.attention.layers = {3, 3}; });
  is_refused(kGated, "model.attention.num_heads", [](Model& m) {
    m.attention.layers = {3};
    m.attention.num_heads = 1024;
  });
  is_refused(kDelta, "model.osdn", [](Model& m) {
    m.qk_norm = QkNorm::kSum;
    m.osdn.emplace();
  });
}

TEST_CASE("what optional keys of a model stand for follows the backbone", "[config]") {
  Model model;
  CHECK(value_dim(model) == 128);
  CHECK_FALSE(output_gate(model));
  CHECK_FALSE(is_attention_layer(model, 0));
  model.backbone = Backbone::kGatedDeltaNet;
  CHECK(value_dim(model) == 256);
  CHECK(num_value_heads(model) == 8);
  CHECK(output_gate(model));
  model.use_gate = false;
  CHECK_FALSE(output_gate(model));
  model.attention.layers = {2, 5};
  CHECK(is_attention_layer(model, 5));
  CHECK_FALSE(is_attention_layer(model, 4));
  CHECK(attention_kv_heads(model) == 8);
  model.attention.num_heads = 4;
  CHECK(attention_kv_heads(model) == 4);
  Model kda;
  kda.backbone = Backbone::kKda;
  kda.value_expand = 0.5;
  CHECK(gate_low_rank(kda) == 64);
  kda.gate_low_rank = 48;
  CHECK(gate_low_rank(kda) == 48);
  Model transformer;
  transformer.backbone = Backbone::kTransformer;
  CHECK(is_attention_layer(transformer, 23));
}

TEST_CASE("boxes and steps beyond stability need allow_unstable", "[config]") {
  Config config;
  config.model.osdn.emplace();
  Osdn& osdn = *config.model.osdn;
  osdn.box = {0.0, 2.0};
  osdn.step_size = 2.0;
  CHECK(validation_error(config).empty());
  osdn.box[1] = 2.0001;
  CHECK(contains(validation_error(config), "model.osdn.box: expected an upper bound of at most 2"));
  osdn.box[1] = 2.0;
  osdn.step_size = 2.0001;
  CHECK(contains(validation_error(config), "model.osdn.step_size: expected at most 2"));
  osdn.allow_unstable = true;
  CHECK(validation_error(config).empty());

  osdn.allow_unstable = false;
  config.model.allow_negative_eigenvalues = true;
  CHECK(max_beta(config.model) == 2.0);
  osdn.step_size = 0.5;
  osdn.box = {0.5, 1.0};
  CHECK(validation_error(config).empty());
  osdn.step_size = 0.51;
  CHECK(contains(validation_error(config), "model.osdn.step_size: expected at most 0.5"));
  osdn.step_size = 0.5;
  osdn.box = {0.5, 1.5};
  CHECK(contains(validation_error(config), "model.osdn.box: expected an upper bound of at most 1"));
}

TEST_CASE("presets carry the published values", "[config]") {
  struct Row {
    const char* name;
    double step_size;
    double low, high;
    Hypergradient hypergradient;
    double initial_scale;
    bool learned;
    Retention retention;
    bool detach;
    bool unstable;
  };
  constexpr auto kAware = Hypergradient::kBetaAware;
  constexpr auto kFree = Hypergradient::kBetaFree;
  constexpr double kThird = 2.0 / 3.0;
  const std::vector<Row> rows = {
      {"osdn", 1.0, kThird, 1.5, kAware, 1.0, true, Retention::kNone, false, false},
      {"osdn_apf", 1.0, kThird, 1.5, kAware, 1.0, true, Retention::kOwnGate, false, false},
      {"osdn_authors_run2", 1.0, 0.0, 2.0, kFree, 0.0, false, Retention::kNone, false, false},
      {"osdn_apf_authors", 1.0, 0.0, 1e9, kFree, 0.0, true, Retention::kOwnGate, false, true},
      {"osdn_authors_may", 0.003, kThird, 1.5, kFree, 1.0, true, Retention::kNone, false, false},
      {"os_gdn", 0.003, kThird, 1.5, kAware, 1.0, true, Retention::kNone, false, false},
      {"os_gdn_apf_stategate", 0.003, kThird, 1.5, kAware, 1.0, true, Retention::kStateGate, false, false},
      {"os_gdn_apf_own", 0.003, kThird, 1.5, kAware, 1.0, true, Retention::kOwnGate, false, false},
      {"os_kda_detach", 0.01, 0.0, 1.2, kAware, 1.0, true, Retention::kNone, true, false},
      {"os_kda_apf", 0.003, kThird, 1.5, kAware, 1.0, true, Retention::kOwnGate, false, false},
  };
  CHECK(detail::presets().size() == rows.size() + 1);
  REQUIRE(detail::find_preset("deltanet") != nullptr);
  CHECK(!detail::find_preset("deltanet")->osdn);
  for (const Row& row : rows) {
    INFO(row.name);
    const detail::Preset* preset = detail::find_preset(row.name);
    REQUIRE(preset != nullptr);
    REQUIRE(preset->osdn.has_value());
    const Osdn& osdn = *preset->osdn;
    CHECK(osdn.preset == std::string(row.name));
    CHECK(osdn.step_size == row.step_size);
    CHECK(osdn.box == std::array<double, 2>{row.low, row.high});
    CHECK(osdn.hypergradient == row.hypergradient);
    CHECK(osdn.initial_scale == row.initial_scale);
    CHECK(osdn.learn_initial_scale == row.learned);
    CHECK(osdn.retention == row.retention);
    CHECK(osdn.retention_bias == 6.9);
    CHECK(osdn.detach == row.detach);
    CHECK(osdn.allow_unstable == row.unstable);
    CHECK(osdn.clamp_initial_scale ==
          (std::string(row.name) == "osdn" || std::string(row.name) == "osdn_apf"));
    CHECK_FALSE(osdn.anchored);
    CHECK_FALSE(osdn.divide_by_key_norm);
    for (const std::string backbone : {"delta_net", "gated_delta_net", "kda"}) {
      const std::string text = "model: {backbone: " + backbone + ", osdn: {preset: " + row.name + "}}\n";
      if (osdn.retention == Retention::kStateGate && backbone == "delta_net")
        CHECK(contains(load_error(text), "model.osdn.retention"));
      else
        CHECK(load_error(text).empty());
    }
  }
}

}  // namespace osdn::config::test
