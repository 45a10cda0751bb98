#include "checkpoint/fla_config.h"

#include <cmath>
#include <set>
#include <string>

#include "config/yaml.h"
#include "tests/checkpoint/support.h"

namespace fla_config_test {

using checkpoint_test::contains;
using checkpoint_test::message_of;
using osdn::Json;
using osdn::checkpoint::FlaModel;

/// The keys of flame's delta_net_340M.json.
Json plain() {
  return {{"attn_mode", "chunk"},
          {"bos_token_id", 1},
          {"conv_size", 4},
          {"eos_token_id", 2},
          {"expand_k", 1},
          {"expand_v", 1},
          {"fuse_cross_entropy", true},
          {"hidden_act", "swish"},
          {"hidden_ratio", 4},
          {"hidden_size", 1024},
          {"initializer_range", 0.02},
          {"intermediate_size", nullptr},
          {"model_type", "delta_net"},
          {"norm_eps", 1e-6},
          {"num_heads", 8},
          {"num_hidden_layers", 24},
          {"qk_activation", "silu"},
          {"qk_norm", "l2"},
          {"tie_word_embeddings", false},
          {"use_beta", true},
          {"use_cache", true},
          {"use_gate", false},
          {"use_output_norm", true},
          {"use_short_conv", true}};
}

Json authors() {
  Json json = plain();
  json["model_type"] = "osla_delta_net";
  json["use_osgm"] = true;
  return json;
}

FlaModel parse(const Json& json, const std::vector<std::string>& ignored = {}) {
  return osdn::checkpoint::parse_fla_config("config.json", json.dump(), ignored);
}

Json with(Json json, const char* key, const Json& value) {
  json[key] = value;
  return json;
}

std::string refusal(const Json& json) {
  return message_of<osdn::UserError>([&] { parse(json); });
}

osdn::config::Model small(bool osdn_block) {
  osdn::config::Model model;
  model.vocab_size = 61;
  model.hidden_size = 32;
  model.num_layers = 2;
  model.num_heads = 2;
  model.head_dim = 16;
  if (osdn_block) {
    model.osdn = osdn::config::Osdn{};
    model.osdn->hypergradient = osdn::config::Hypergradient::kBetaFree;
    model.osdn->clamp_initial_scale = false;
  }
  return model;
}

std::vector<std::string> differences(const osdn::config::Model& a, const osdn::config::Model& b) {
  osdn::config::Config first;
  osdn::config::Config second;
  first.model = a;
  second.model = b;
  return osdn::config::differences(first, second);
}

std::string export_refusal(const osdn::config::Model& model) {
  return message_of<osdn::UserError>([&] { osdn::checkpoint::fla_config(model, {.dtype = "float32"}); });
}

TEST_CASE("a delta_net config.json gives the peer's model", "[fla_config]") {
  const FlaModel fla = parse(plain());
  CHECK(fla.model_type == "delta_net");
  CHECK(fla.model.hidden_size == 1024);
  CHECK(fla.model.num_layers == 24);
  CHECK(fla.model.num_heads == 8);
  CHECK(fla.model.head_dim == 128);
  CHECK(fla.model.vocab_size == 32000);  // the key is absent from the official files
  CHECK(osdn::config::intermediate_size(fla.model) == 2816);
  CHECK(!fla.model.tie_embeddings);
  CHECK(!fla.model.osdn.has_value());
  CHECK(fla.ids.bos == 1);
  CHECK(fla.ids.eos == 2);
  CHECK(!fla.ids.pad.has_value());
  CHECK(parse(with(plain(), "norm_eps", 1e-5)).model.norm_eps == 1e-5);
  CHECK(parse(with(plain(), "allow_neg_eigval", true)).model.allow_negative_eigenvalues);
  CHECK(parse(with(plain(), "use_gate", true)).model.use_gate);
  CHECK(parse(with(plain(), "pad_token_id", 2)).ids.pad == 2);
  CHECK(!parse(with(plain(), "bos_token_id", nullptr)).ids.bos.has_value());
  CHECK(parse(with(plain(), "torch_dtype", "bfloat16")).dtype == "bfloat16");
  CHECK(parse(with(plain(), "max_position_embeddings", 8192)).max_position_embeddings == 8192);
}

TEST_CASE("the width of the MLP follows the peer's rule for every ratio", "[fla_config]") {
  CHECK(parse(with(plain(), "intermediate_size", 3000)).model.intermediate_size == 3000);
  // int(1024 * 3 * 2 / 3) = 2048, a multiple of 256; int(1024 * 2.7 * 2 / 3) = 1843, rounded up to 2048.
  CHECK(parse(with(plain(), "hidden_ratio", 3)).model.intermediate_size == 2048);
  CHECK(parse(with(plain(), "hidden_ratio", 2.7)).model.intermediate_size == 2048);
  CHECK(!parse(with(plain(), "hidden_ratio", nullptr)).model.intermediate_size.has_value());
}

TEST_CASE("an osla_delta_net config.json gives the authors' rule, with their defaults for what is null",
          "[fla_config]") {
  const FlaModel fla = parse(authors());
  REQUIRE(fla.model.osdn.has_value());
  CHECK(fla.model.osdn->hypergradient == osdn::config::Hypergradient::kBetaFree);
  CHECK(fla.model.osdn->step_size == 1.0);
  CHECK(fla.model.osdn->box == std::array<double, 2>{0.0, 1e9});
  CHECK(fla.model.osdn->allow_unstable);
  CHECK(!fla.model.osdn->clamp_initial_scale);
  CHECK(fla.model.osdn->learn_initial_scale);
  CHECK(!fla.model.osdn->divide_by_key_norm);
  CHECK(fla.model.osdn->retention == osdn::config::Retention::kNone);

  Json run2 = authors();
  run2.update({{"osgm_eta", 0.003}, {"osgm_d_min", 0.6666667}, {"osgm_d_max", 1.5}});
  run2["osgm_decay_mode"] = "data_dependent";
  run2["osgm_use_denominator"] = true;
  const auto osdn = *parse(run2).model.osdn;
  CHECK(osdn.step_size == 0.003);
  CHECK(osdn.box == std::array<double, 2>{0.6666667, 1.5});
  CHECK(!osdn.allow_unstable);
  CHECK(osdn.divide_by_key_norm);
  CHECK(osdn.retention == osdn::config::Retention::kOwnGate);
}

TEST_CASE("an unknown key is refused by name, until the caller vouches for it", "[fla_config]") {
  const Json json = with(plain(), "num_hidden_layer", 12);
  CHECK(contains(refusal(json), "unknown key num_hidden_layer"));
  CHECK(parse(json, {"num_hidden_layer"}).model.num_layers == 24);
  CHECK(contains(refusal(with(plain(), "osgm_eta", 1.0)), "osgm_eta"));  // of the other model_type
  CHECK(contains(refusal(with(json, "rope_scaling", 2)), "unknown keys num_hidden_layer, rope_scaling"));
}

TEST_CASE("a value that changes the mathematics is refused with key, value and what is supported",
          "[fla_config]") {
  const auto check = [](const Json& json, const char* key, const Json& value) {
    const std::string message = refusal(with(json, key, value));
    INFO(message);
    CHECK(contains(message, std::string(key) + ": expected "));
    CHECK(contains(message, "got " + value.dump()));
  };
  check(plain(), "attn", Json{{"layers", {1}}, {"num_heads", 4}});
  check(plain(), "attnres_block_size", 2);
  check(plain(), "hidden_act", "powlu");
  check(plain(), "qk_norm", "sum");
  check(plain(), "qk_activation", "elu");
  check(plain(), "use_beta", false);
  check(plain(), "use_short_conv", false);
  check(plain(), "expand_k", 0.5);
  check(plain(), "expand_v", 2);
  check(plain(), "model_type", "gated_deltanet");
  check(plain(), "norm_first", true);
  check(plain(), "num_heads", 7);
  check(authors(), "use_osgm", false);
  check(authors(), "osgm_decay_mode", "learnable");
  check(authors(), "osgm_decay_mode", "ema_norm");
  check(authors(), "osgm_decay", true);
  check(authors(), "allow_neg_eigval", true);
  Json without = authors();
  without.erase("use_osgm");
  CHECK(contains(refusal(without), "use_osgm: expected true, got nothing"));
}

TEST_CASE("a wrong type or range is refused by key", "[fla_config]") {
  CHECK(contains(refusal(with(plain(), "hidden_size", "1024")), "hidden_size: expected a whole number"));
  CHECK(contains(refusal(with(plain(), "hidden_size", 1024.5)), "hidden_size: expected a whole number"));
  CHECK(contains(refusal(with(plain(), "num_hidden_layers", 0)), "num_hidden_layers"));
  CHECK(contains(refusal(with(plain(), "vocab_size", uint64_t{1} << 63)), "vocab_size"));
  CHECK(contains(refusal(with(plain(), "norm_eps", "1e-6")), "norm_eps: expected a number"));
  CHECK(contains(refusal(with(plain(), "norm_eps", -1)), "norm_eps"));
  CHECK(contains(refusal(with(plain(), "tie_word_embeddings", 1)), "tie_word_embeddings: expected true or"));
  CHECK(contains(refusal(with(plain(), "eos_token_id", Json::array({2, 3}))), "eos_token_id"));
  CHECK(contains(refusal(with(authors(), "osgm_d_min", 3e9)), "box"));
  const auto damaged = [](const std::string& text) {
    return message_of<osdn::DataError>([&] { osdn::checkpoint::parse_fla_config("c", text, {}); });
  };
  CHECK(contains(damaged("{\"model_type\": "), "not valid JSON"));
  CHECK(contains(damaged("[]"), "no JSON object"));
  CHECK(contains(damaged(R"({"num_heads": 8, "num_heads": 4})"), "names \"num_heads\" twice"));
  CHECK(contains(damaged("{\"a\": \"\xff\"}"), "not valid JSON"));
}

TEST_CASE("harmless keys have a reason each and are not read for anything", "[fla_config]") {
  std::set<std::string> seen;
  Json json = plain();
  for (const auto& harmless : osdn::checkpoint::harmless_fla_keys()) {
    CHECK(seen.insert(harmless.key).second);
    CHECK(std::string(harmless.reason).size() > 10);
    json[harmless.key] = "nonsense";
  }
  CHECK(differences(parse(json).model, parse(plain()).model).empty());
}

TEST_CASE("no altered config.json does anything but parse or be refused", "[fla_config]") {
  const std::string text = authors().dump();
  uint64_t random = 12345;
  const auto draw = [&](uint64_t limit) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    return (random >> 33) % limit;
  };
  int num_refused = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string altered = text;
    for (uint64_t change = draw(3) + 1; change > 0; --change) {
      const size_t at = draw(altered.size());
      const size_t length = draw(3);
      if (draw(2) == 0)
        altered.replace(at, length, 1, static_cast<char>(draw(256)));
      else
        altered.replace(at, length, altered.substr(draw(altered.size()), draw(12)));
    }
    try {
      osdn::checkpoint::parse_fla_config("c", altered, {});
    } catch (const osdn::Error&) {
      ++num_refused;
    }
  }
  CHECK(num_refused > 10000);
}

TEST_CASE("what is written means the same model when it is read", "[fla_config]") {
  std::vector<osdn::config::Model> models = {small(false), small(true), small(true), small(true)};
  models[0].use_gate = true;
  models[0].allow_negative_eigenvalues = true;
  models[0].tie_embeddings = true;
  models[0].norm_eps = 3e-6;
  models[0].conv_size = 3;
  models[0].intermediate_size = 48;
  models[1].osdn->box = {0.1, 1.9};
  models[1].osdn->step_size = 0.3;
  models[2].osdn->retention = osdn::config::Retention::kOwnGate;
  models[2].osdn->divide_by_key_norm = true;
  models[3].osdn->retention = osdn::config::Retention::kConstant;
  models[3].osdn->retention_bias = std::log(0.999F / (1.0F - 0.999F));
  for (const osdn::config::Model& model : models) {
    const osdn::checkpoint::FlaConfigOptions options{.ids = {.bos = 3, .eos = std::nullopt, .pad = 0},
                                                     .dtype = "float16"};
    const Json json = osdn::checkpoint::fla_config(model, options);
    INFO(json.dump(1));
    const FlaModel again = parse(json);
    for (const std::string& difference : differences(model, again.model)) {
      INFO(difference);
      CHECK(false);
    }
    CHECK(again.ids.bos == 3);
    CHECK(!again.ids.eos.has_value());
    CHECK(again.ids.pad == 0);
    CHECK(again.dtype == "float16");
    CHECK(osdn::checkpoint::fla_config(again.model, options) == json);
  }
}

TEST_CASE("every rate of constant retention comes back as the authors' code rounds it", "[fla_config]") {
  for (const double rate : {0.999, 0.9, 0.5, 0.99, 0.9999, 0.1}) {
    Json json = with(authors(), "osgm_decay_mode", "constant");
    json["osgm_decay_gamma"] = rate;
    const FlaModel fla = parse(json);
    const Json written = osdn::checkpoint::fla_config(fla.model, {.dtype = "float32"});
    CHECK(written["osgm_decay_gamma"].get<double>() == rate);
  }
}

TEST_CASE("what the format has no place for is refused by key", "[fla_config]") {
  osdn::config::Model model = small(true);
  CHECK(osdn::checkpoint::fla_config(model, {.dtype = "float32"})["use_osgm"] == true);
  model.osdn->hypergradient = osdn::config::Hypergradient::kBetaAware;
  CHECK(contains(export_refusal(model), "model.osdn.hypergradient: beta_aware"));
  model = small(true);
  model.osdn->retention = osdn::config::Retention::kOwnGate;
  model.osdn->anchored = true;
  CHECK(contains(export_refusal(model), "model.osdn.anchored"));
  model = small(true);
  model.allow_negative_eigenvalues = true;
  CHECK(contains(export_refusal(model), "model.allow_negative_eigenvalues"));
  model = small(false);
  model.backbone = osdn::config::Backbone::kKda;
  CHECK(contains(export_refusal(model), "model.backbone"));
}

TEST_CASE("the authors' retention buffers and the setting stand for each other", "[fla_config]") {
  osdn::config::Model model = small(true);
  model.osdn->retention = osdn::config::Retention::kConstant;
  model.osdn->retention_bias = 2.5;
  osdn::checkpoint::TensorList tensors = {{"model.norm.weight", at::ones({32})}};
  osdn::checkpoint::add_retention_buffers(model, &tensors);
  REQUIRE(tensors.size() == 3);
  CHECK(tensors[2].first == "model.layers.1.attn.osgm_gamma_log");
  CHECK(at::equal(tensors[2].second, at::full({2}, 2.5F)));

  osdn::config::Model read = model;
  read.osdn->retention_bias = 6.9;
  osdn::checkpoint::TensorList copy = tensors;
  osdn::checkpoint::take_retention_buffers("d", &copy, &read);
  CHECK(copy.size() == 1);
  CHECK(read.osdn->retention_bias == 2.5);

  tensors[2].second = at::full({2}, 2.0F);
  CHECK(contains(
      message_of<osdn::DataError>([&] { osdn::checkpoint::take_retention_buffers("d", &tensors, &read); }),
      "model.layers.1.attn.osgm_gamma_log"));
}

TEST_CASE("decay rates and the preconditioner's parameters stay float32, other tensors may be less",
          "[fla_config]") {
  for (const char* name :
       {"A_log", "dt_bias", "initial_scale", "osgm_a_proj.weight", "osgm_a_proj.bias", "osgm_gamma_log"})
    CHECK(osdn::checkpoint::stays_float32(std::string("model.layers.11.attn.") + name));
  CHECK(!osdn::checkpoint::stays_float32("model.layers.0.attn.q_proj.weight"));
  CHECK(!osdn::checkpoint::stays_float32("lm_head.weight"));
}

}  // namespace fla_config_test
