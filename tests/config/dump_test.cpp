// What is written back: dump, differences, the reference page, the files that ship.
#include <algorithm>
#include <cctype>
#include <string>

#include "base/fs.h"
#include "config/detail/presets.h"
#include "config/detail/schema.h"
#include "tests/config/config_support.h"
#include "tests/support/catch.h"

namespace osdn::config::test {

TEST_CASE("a dumped configuration loads as itself", "[dump]") {
  const Config defaults;
  CHECK(differences(load_ok(dump(defaults)), defaults).empty());

  Config config;
  config.run.name = "yes";
  config.run.directory = "a $dir/\xC3\xA4 #1: 'x' \"y\"";
  config.run.seed = 9007199254740993;
  config.run.init_from = "null";
  config.model.osdn.emplace();
  config.model.osdn->box = {1.0 / 3.0, 1.1};
  config.model.osdn->retention = Retention::kConstant;
  config.model.osdn->retention_bias = -1e-7;
  config.data.train = {{"a-*.h5", 0.1}, {"{b}, [c].h5", 0.2}};
  config.data.validation = {"*v.h5", "~tilde", "tab\there"};
  config.data.max_document_tokens = 65536;
  config.optimizer.eps = 1e-15;
  config.optimizer.learning_rate = 0.1 + 0.2;
  config.optimizer.schedule = Schedule::kWarmupStableDecay;
  config.train.micro_batch_sequences = 4;
  config.train.cuda_graph = false;
  config.prepare.tokenizer_model = "5.model";
  config.prepare.text_key = "1e5";
  config.distributed.processes_per_node = 2;
  config.data.validation[1] = "./~tilde";
  const Config again = load_ok(dump(config));
  CHECK(differences(again, config).empty());
  CHECK(again.run.seed == config.run.seed);
  CHECK(again.run.name == config.run.name);
  CHECK(again.run.directory == config.run.directory);
  CHECK(again.model.osdn->box == config.model.osdn->box);
  CHECK(again.optimizer.learning_rate == config.optimizer.learning_rate);
  CHECK(again.data.validation == config.data.validation);
  CHECK(again.data.train.at(1).path == config.data.train.at(1).path);
  CHECK(again.prepare.text_key == config.prepare.text_key);
  CHECK(dump(again) == dump(config));
}

TEST_CASE("every preset survives the round trip", "[dump]") {
  for (const detail::Preset& preset : detail::presets()) {
    INFO(preset.name);
    Config config;
    config.model.osdn = preset.osdn;
    config.model.backbone = Backbone::kGatedDeltaNet;  // the state gate needs a decay
    CHECK(differences(load_ok(dump(config)), config).empty());
  }
}

TEST_CASE("a dump names every key", "[dump]") {
  Config config;
  config.model.osdn.emplace();
  const std::string text = dump(config);
  for (const detail::Field& field : detail::fields()) {
    INFO(field.key);
    CHECK(contains(text, "  " + field.name + ": "));
  }
  CHECK(contains(text, "eps: 1.0e-15\n"));
  CHECK(contains(text, "micro_batch_sequences: auto\n"));
  CHECK(contains(dump(Config{}), "  osdn: null\n"));
}

TEST_CASE("differences name the keys and both values", "[dump]") {
  Config a;
  Config b;
  CHECK(differences(a, b).empty());
  b.train.steps = 7;
  b.data.train = {{"x.h5", 1.0}};
  const std::vector<std::string> lines = differences(a, b);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "data.train: [] -> [x.h5]");
  CHECK(lines[1] == "train.steps: 20480 -> 7");
  Config c;
  c.model.osdn.emplace();
  REQUIRE(differences(a, c).size() == 1);
  CHECK(contains(differences(a, c)[0], "model.osdn: null -> {preset: null, step_size: 1.0, "));
  Config d = c;
  d.model.osdn->step_size = 0.5;
  CHECK(differences(c, d) == std::vector<std::string>{"model.osdn.step_size: 1.0 -> 0.5"});
}

TEST_CASE("docs/config.md is the program's reference page", "[dump]") {
  const std::string path = std::string(OSDN_SOURCE_DIR) + "/docs/config.md";
  INFO("regenerate with: osdn config reference > docs/config.md");
  CHECK(read_file(path) == reference_page());
}

struct Shipped {
  const char* backbone;  // in the file's name
  Backbone kind;
  int64_t layers[2];  // 340M, 1.3B
  int64_t heads[2];
  bool has_osdn;  // variants osdn and osdn_apf ship as well
};

void check_recipe(const std::string& name, const Shipped& shipped, const std::string& variant,
                  bool is_large) {
  const Config config = load(std::string(OSDN_SOURCE_DIR) + "/configs/" + name + ".yaml", {});
  INFO(name);
  CHECK(config.data.train.size() == 1);
  CHECK(config.data.validation.size() == 1);
  std::string run = name;
  std::replace(run.begin(), run.end(), '_', '-');
  CHECK(config.run.name == run);
  CHECK(config.run.seed == 42);
  CHECK(config.model.backbone == shipped.kind);
  CHECK(config.model.hidden_size == (is_large ? 2048 : 1024));
  CHECK(config.model.num_heads == shipped.heads[is_large]);
  CHECK(config.model.num_layers == shipped.layers[is_large]);
  CHECK(config.model.vocab_size == 32000);
  CHECK(intermediate_size(config.model) == (is_large ? 5632 : 2816));
  CHECK(config.model.osdn.has_value() == !variant.empty());
  if (config.model.osdn) {
    CHECK((config.model.osdn->retention == Retention::kOwnGate) == (variant == "osdn_apf_"));
    CHECK(config.model.osdn->step_size == (shipped.kind == Backbone::kDeltaNet ? 1.0 : 0.1));
    CHECK(config.model.osdn->hypergradient == Hypergradient::kBetaAware);
  }
  CHECK(config.train.steps == (is_large ? 190735 : 20480));
  CHECK(config.train.global_batch_tokens == 524288);
  CHECK(config.optimizer.warmup_steps == (is_large ? 2048 : 1024));
  CHECK(config.optimizer.learning_rate == 1e-3);
  CHECK(config.optimizer.eps == 1e-15);
  CHECK(config.data.sequence_length == 4096);
  CHECK(config.data.max_document_tokens.has_value() == false);
}

TEST_CASE("the configurations that ship load and follow the published recipe", "[dump]") {
  const std::vector<Shipped> all = {
      {"delta_net", Backbone::kDeltaNet, {24, 24}, {8, 16}, true},
      {"gated_delta_net", Backbone::kGatedDeltaNet, {21, 21}, {6, 12}, true},
      {"kda", Backbone::kKda, {23, 24}, {8, 16}, true},
      {"flame_gated_delta_net", Backbone::kGatedDeltaNet, {21, 21}, {6, 6}, false},
      {"transformer", Backbone::kTransformer, {24, 24}, {16, 32}, false},
  };
  for (const Shipped& shipped : all)
    for (const bool is_large : {false, true})
      for (const std::string variant : {"", "osdn_", "osdn_apf_"})
        if (variant.empty() || shipped.has_osdn)
          check_recipe(variant + shipped.backbone + (is_large ? "_1.3b" : "_340m"), shipped, variant,
                       is_large);
}

}  // namespace osdn::config::test
