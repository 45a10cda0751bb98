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

/// One of every other family, with options away from their defaults.
std::vector<osdn::config::Model> other_families() {
  using osdn::config::Backbone;
  std::vector<osdn::config::Model> models;
  osdn::config::Model delta = small(false);
  delta.qk_norm = osdn::config::QkNorm::kSum;
  delta.qk_activation = osdn::config::QkActivation::kElu;
  delta.value_expand = 0.5;
  models.push_back(delta);
  osdn::config::Model gated = small(false);
  gated.backbone = Backbone::kGatedDeltaNet;
  gated.head_dim = 8;
  gated.num_value_heads = 4;
  gated.value_expand = 1.5;
  gated.use_gate = false;
  gated.attention.layers = {1};
  gated.attention.num_heads = 4;
  gated.attention.num_kv_heads = 2;
  gated.attention.window_size = 9;
  models.push_back(gated);
  osdn::config::Model kda = small(false);
  kda.backbone = Backbone::kKda;
  kda.head_dim = 8;
  kda.num_value_heads = 4;
  kda.gate_lower_bound = -4.5;
  kda.safe_gate = true;
  models.push_back(kda);
  osdn::config::Model transformer = small(false);
  transformer.backbone = Backbone::kTransformer;
  transformer.attention.num_kv_heads = 1;
  transformer.attention.qkv_bias = true;
  transformer.attention.qk_norm = true;
  transformer.attention.window_size = 7;
  transformer.attention.rope_theta = 500;
  models.push_back(transformer);
  for (const Backbone backbone : {Backbone::kGatedDeltaNet, Backbone::kKda})
    for (const auto retention : {osdn::config::Retention::kNone, osdn::config::Retention::kOwnGate,
                                 osdn::config::Retention::kStateGate, osdn::config::Retention::kConstant}) {
      if (backbone == Backbone::kKda && retention == osdn::config::Retention::kStateGate) continue;
      osdn::config::Model model = small(true);
      model.backbone = backbone;
      model.osdn->hypergradient = osdn::config::Hypergradient::kBetaAware;
      model.osdn->retention = retention;
      if (retention == osdn::config::Retention::kConstant)
        model.osdn->retention_bias = std::log(0.99F / (1.0F - 0.99F));
      models.push_back(model);
    }
  return models;
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

TEST_CASE("gated_deltanet, kda and transformer have the defaults of their own code", "[fla_config]") {
  using osdn::config::Backbone;
  const auto bare = [](const char* type) { return parse(Json{{"model_type", type}}).model; };
  const osdn::config::Model gated = bare("gated_deltanet");
  CHECK(gated.backbone == Backbone::kGatedDeltaNet);
  CHECK(gated.num_layers == 21);
  CHECK(gated.num_heads == 6);
  CHECK(gated.head_dim == 256);
  CHECK(osdn::config::value_dim(gated) == 512);
  CHECK(osdn::config::output_gate(gated));
  const osdn::config::Model kda = bare("kda");
  CHECK(kda.num_heads == 16);
  CHECK(kda.head_dim == 128);
  CHECK(osdn::config::value_dim(kda) == 128);
  CHECK(!kda.gate_lower_bound.has_value());
  const osdn::config::Model transformer = bare("transformer");
  CHECK(transformer.backbone == Backbone::kTransformer);
  CHECK(transformer.num_heads == 32);
  CHECK(transformer.head_dim == 64);
  CHECK(transformer.attention.rope_theta == 10000.0);
  const osdn::config::Model os_gated = bare("os_gated_deltanet");
  CHECK(os_gated.osdn->hypergradient == osdn::config::Hypergradient::kBetaFree);
  CHECK(os_gated.osdn->retention == osdn::config::Retention::kNone);
  const osdn::config::Model os_kda = bare("os_kda");
  CHECK(os_kda.osdn->hypergradient == osdn::config::Hypergradient::kBetaAware);
  CHECK(os_kda.osdn->retention == osdn::config::Retention::kConstant);
  CHECK(os_kda.osdn->box == std::array<double, 2>{0.0, 1e9});
}

TEST_CASE("options of the other families are read by key", "[fla_config]") {
  const auto of = [](const char* type) { return Json{{"model_type", type}}; };
  Json json = of("gated_deltanet");
  json.update(
      {{"num_heads", 4}, {"head_dim", 64}, {"num_v_heads", 8}, {"expand_v", 1.5}, {"use_gate", false}});
  osdn::config::Model model = parse(json).model;
  CHECK(osdn::config::num_value_heads(model) == 8);
  CHECK(osdn::config::value_dim(model) == 96);
  CHECK(!osdn::config::output_gate(model));
  CHECK(!osdn::config::output_gate(parse(with(json, "output_gate_activation", "silu")).model));
  CHECK_THROWS_AS(parse(with(json, "output_gate_activation", "sigmoid")), osdn::UserError);
  json = of("kda");
  json.update({{"safe_gate", true}, {"lower_bound", -5}, {"allow_neg_eigval", true}});
  model = parse(json).model;
  CHECK(model.gate_lower_bound == -5.0);
  CHECK(model.safe_gate);
  CHECK(model.allow_negative_eigenvalues);
  CHECK(contains(refusal(with(of("kda"), "safe_gate", true)), "gate_lower_bound"));
  json = of("os_gated_deltanet");
  json.update({{"osgm_post_gate_regret", true}, {"osgm_decay_mode", "data_dependent"}, {"osgm_d_max", 1.5}});
  CHECK(parse(json).model.osdn->hypergradient == osdn::config::Hypergradient::kBetaAware);
  CHECK(parse(json).model.osdn->retention == osdn::config::Retention::kOwnGate);
  CHECK(!parse(json).model.osdn->allow_unstable);
  CHECK(parse(with(json, "osgm_d_decay_source", "gdn")).model.osdn->retention ==
        osdn::config::Retention::kStateGate);
  CHECK(parse(with(json, "allow_neg_eigval", true)).model.osdn->allow_unstable);  // 1.5 x 2 > 2
  // The plain models of the authors' code carry its keys, switched off.
  json = with(of("kda"), "use_osgm", false);
  CHECK(!parse(with(json, "osgm_eta", 1.0)).model.osdn.has_value());
  CHECK(contains(refusal(with(of("kda"), "osgm_eta", 1.0)), "osgm_eta"));
  CHECK(contains(refusal(with(of("kda"), "qk_norm", "sum")), "unknown key qk_norm"));
}

TEST_CASE("layers of softmax attention are read, alike in all of their sections or refused", "[fla_config]") {
  const auto hybrid = [](const Json& attn) {
    return with(with(Json{{"model_type", "gated_deltanet"}}, "attn", attn), "hidden_size", 512);
  };
  const Json some = {{"layers", {3, 7}}, {"num_heads", 8}, {"num_kv_heads", 2}, {"window_size", 1024}};
  const auto attention = parse(hybrid(some)).model.attention;
  CHECK(attention.layers == std::vector<int64_t>{3, 7});
  CHECK(attention.num_heads == 8);
  CHECK(attention.num_kv_heads == 2);
  CHECK(attention.window_size == 1024);
  CHECK(attention.rope_theta == 10000.0);
  Json more = some;
  more["layers"] = {11};
  CHECK(parse(hybrid(Json::array({some, more}))).model.attention.layers == std::vector<int64_t>{3, 7, 11});
  more["window_size"] = nullptr;
  CHECK(contains(refusal(hybrid(Json::array({some, more}))), "the same settings"));
  CHECK(contains(refusal(hybrid(with(some, "sinks", 4))), "attn: unknown key sinks"));
  CHECK(contains(refusal(hybrid(Json{{"num_heads", 8}})), "layers: expected"));
  CHECK(contains(refusal(hybrid(Json{{"layers", {1}}})), "num_heads: expected"));
  CHECK(contains(refusal(hybrid(with(some, "layers", {21}))), "model.attention.layers"));
  // Null is attention without positions there, not the default.
  CHECK(contains(refusal(hybrid(with(some, "rope_theta", nullptr))), "rope_theta: expected a number"));
  CHECK(contains(refusal(with(Json{{"model_type", "transformer"}}, "rope_theta", nullptr)),
                 "rope_theta: expected a number"));
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
  check(plain(), "attn", "none");
  check(plain(), "attnres_block_size", 2);
  check(plain(), "hidden_act", "powlu");
  check(plain(), "elementwise_affine", false);
  check(plain(), "qk_norm", "l1");
  check(plain(), "qk_activation", "gelu");
  check(plain(), "use_beta", false);
  check(plain(), "use_short_conv", false);
  check(plain(), "expand_k", 0.5);
  check(plain(), "expand_v", 0.3);  // 38.4 values a head
  check(plain(), "use_osgm", true);
  check(plain(), "model_type", "mamba2");
  check(plain(), "norm_first", true);
  check(plain(), "num_heads", 7);
  check(authors(), "use_osgm", false);
  check(authors(), "osgm_decay_mode", "learnable");
  check(authors(), "osgm_decay_mode", "ema_norm");
  check(authors(), "osgm_decay", true);
  check(authors(), "allow_neg_eigval", true);
  const Json gated = with(authors(), "model_type", "os_gated_deltanet");
  check(gated, "gate_aware_hypergradient", true);
  check(gated, "osgm_post_gate_residual", true);
  check(gated, "osgm_post_gate_clamp_min", -2);
  check(gated, "osgm_d_decay_source", "beta");
  check(with(authors(), "model_type", "os_kda"), "num_v_heads", 32);
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
  for (const osdn::config::Model& model : other_families()) models.push_back(model);
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
  model.gate_low_rank = 5;
  CHECK(contains(export_refusal(model), "model.gate_low_rank: 5"));
  model.gate_low_rank.reset();
  model.osdn = osdn::config::Osdn{};
  CHECK(osdn::checkpoint::fla_config(model, {.dtype = "float32"})["osgm_beta_aware"] == true);
  model.osdn->retention = osdn::config::Retention::kStateGate;
  CHECK(contains(export_refusal(model), "model.osdn.retention: state_gate"));
  model.osdn->retention = osdn::config::Retention::kNone;
  model.num_value_heads = 4;
  CHECK(contains(export_refusal(model), "model.num_value_heads: 4"));
  model.osdn.reset();
  model.attention.layers = {1};
  CHECK(osdn::checkpoint::fla_config(model, {.dtype = "float32"})["attn"]["layers"] == Json::array({1}));
  model.attention.qk_norm = true;
  CHECK(contains(export_refusal(model), "model.attention.qk_norm: true"));
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
