// import and export as commands within this process: small models with random weights in directories of the
// exchange format.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "apps/exchange.h"
#include "apps/exchange_directory.h"
#include "apps/export.h"
#include "apps/import.h"
#include "base/fs.h"
#include "checkpoint/model_files.h"
#include "config/yaml.h"
#include "model/init.h"
#include "model/lm.h"
#include "tests/checkpoint/support.h"
#include "train/open_model.h"
#include "train/state.h"

namespace exchange_test {

namespace ck = osdn::checkpoint;
namespace fs = std::filesystem;
using checkpoint_test::contains;
using osdn::Json;

/// What a command ended with: 0, or the code and message of its error.
struct Outcome {
  int code = 0;
  std::string message;
};

Outcome run(std::vector<std::string> arguments) {
  CLI::App root;
  osdn::apps::add_import(root);
  osdn::apps::add_export(root);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes a vector
  try {
    root.parse(arguments);
  } catch (const osdn::Error& failure) {
    return {static_cast<int>(failure.code()), failure.what()};
  } catch (const CLI::ParseError& failure) {
    return {2, failure.what()};
  }
  return {};
}

osdn::config::Model plain_model() {
  osdn::config::Model model;
  model.vocab_size = 61;
  model.hidden_size = 32;
  model.num_layers = 2;
  model.num_heads = 2;
  model.head_dim = 16;
  model.intermediate_size = 48;
  model.initializer_range = 0.2;
  return model;
}

/// As the authors train it; d0 is learned and lies outside the box too.
osdn::config::Model authors_model(osdn::config::Retention retention) {
  osdn::config::Model model = plain_model();
  model.osdn = osdn::config::Osdn{};
  model.osdn->box = {0.5, 1.5};
  model.osdn->hypergradient = osdn::config::Hypergradient::kBetaFree;
  model.osdn->clamp_initial_scale = false;
  model.osdn->retention = retention;
  model.osdn->retention_bias = 2.5;
  return model;
}

osdn::config::Model later_authors_model(osdn::config::Backbone backbone, osdn::config::Retention retention) {
  osdn::config::Model model = authors_model(retention);
  model.backbone = backbone;
  model.osdn->hypergradient = osdn::config::Hypergradient::kBetaAware;
  return model;
}

std::vector<osdn::config::Model> models() {
  osdn::config::Model gated = plain_model();
  gated.use_gate = true;
  gated.allow_negative_eigenvalues = true;
  gated.norm_eps = 3e-6;
  gated.conv_size = 3;
  osdn::config::Model tied = plain_model();
  tied.tie_embeddings = true;
  tied.intermediate_size.reset();
  osdn::config::Model sums = plain_model();
  sums.qk_norm = osdn::config::QkNorm::kSum;
  sums.qk_activation = osdn::config::QkActivation::kElu;
  sums.value_expand = 0.5;
  osdn::config::Model hybrid = plain_model();
  hybrid.backbone = osdn::config::Backbone::kGatedDeltaNet;
  hybrid.head_dim = 8;
  hybrid.num_value_heads = 4;
  hybrid.attention.layers = {1};
  hybrid.attention.window_size = 9;
  osdn::config::Model kda = plain_model();
  kda.backbone = osdn::config::Backbone::kKda;
  kda.value_expand = 1.5;
  kda.gate_lower_bound = -5;
  osdn::config::Model transformer = plain_model();
  transformer.backbone = osdn::config::Backbone::kTransformer;
  transformer.attention.qkv_bias = true;
  transformer.attention.qk_norm = true;
  return {plain_model(),
          gated,
          tied,
          sums,
          hybrid,
          kda,
          transformer,
          authors_model(osdn::config::Retention::kNone),
          authors_model(osdn::config::Retention::kOwnGate),
          authors_model(osdn::config::Retention::kConstant),
          later_authors_model(osdn::config::Backbone::kGatedDeltaNet, osdn::config::Retention::kStateGate),
          later_authors_model(osdn::config::Backbone::kKda, osdn::config::Retention::kOwnGate)};
}

/// Random values for every parameter, of a spread that makes every part of the model count.
std::vector<ck::NamedTensor> random_weights(const osdn::config::Model& model) {
  std::vector<ck::NamedTensor> weights;
  for (osdn::ParameterSpec spec : osdn::model::parameter_specs(model, *model.vocab_size)) {
    if (spec.initializer == osdn::Initializer::kConstant) spec.scale = 0.3;
    spec.initializer = osdn::Initializer::kNormal;
    at::Tensor values = at::empty(spec.shape, at::kFloat);
    osdn::model::initialize(spec, 7, values);
    if (spec.name.find("norm") != std::string::npos) values += 1;
    weights.push_back({spec.name, values});
  }
  return weights;
}

struct Files {
  at::ScalarType dtype = at::kFloat;
  uint64_t max_shard_bytes = 5000000000;
};

/// A directory as another program would leave it.
void write_directory(const std::string& path, const osdn::config::Model& model, const Files& files = {}) {
  osdn::create_directories(path);
  ck::TensorList tensors;
  for (const auto& [name, value] : random_weights(model)) tensors.emplace_back(name, value.to(files.dtype));
  ck::add_retention_buffers(model, &tensors);
  ck::write_model_files(path, tensors, files.max_shard_bytes);
  Json config = ck::fla_config(model, {.ids = {.bos = 1, .eos = 2, .pad = std::nullopt},
                                       .dtype = files.dtype == at::kFloat ? "float32" : "bfloat16"});
  config["transformers_version"] = "4.53.0";
  config["id2label"] = {{"0", "LABEL_0"}};
  osdn::atomic_write(path + "/config.json", config.dump());
}

std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  const ck::TensorList tensors = ck::read_model_files(path).tensors;
  return {tensors.begin(), tensors.end()};
}

void change_config(const std::string& path, const char* key, const Json& value) {
  Json config = osdn::read_json(path + "/config.json");
  config[key] = value;
  osdn::atomic_write(path + "/config.json", config.dump());
}

/// Rewrites the weights with some tensor replaced, added or (undefined) removed.
void change_tensor(const std::string& path, const std::string& name, const at::Tensor& value) {
  auto tensors = read_tensors(path);
  tensors[name] = value;
  if (!value.defined()) tensors.erase(name);
  ck::write_model_files(path, {tensors.begin(), tensors.end()}, 5000000000);
}

at::Tensor logits_of_run(const std::string& run, const at::Tensor& ids) {
  const osdn::train::OpenModel open = osdn::train::open_model(run, {.device = osdn::config::Device::kCpu});
  osdn::model::ForwardCall call{.sequences = osdn::ops::Sequences::equal(ids.size(0), ids.size(1), at::kCPU)};
  const at::NoGradGuard no_grad;
  return open.model->logits(open.model->hidden(ids.reshape({-1}), call));
}

TEST_CASE("import and export in float32 give back every bit and every key that matters", "[exchange]") {
  for (const osdn::config::Model& model : models())
    for (const Files& files : {Files{}, Files{at::kBFloat16}, Files{at::kHalf, 20000}}) {
      const osdn::TemporaryDirectory folder;
      const std::string source = folder.path() + "/source";
      const std::string back = folder.path() + "/back";
      write_directory(source, model, files);
      CHECK(run({"import", source, "--output", folder.path() + "/run"}).message.empty());
      CHECK(run({"export", folder.path() + "/run", "--output", back, "--max-shard-size", "30KB"})
                .message.empty());

      const auto before = read_tensors(source);
      const auto after = read_tensors(back);
      REQUIRE(after.size() == before.size());
      for (const auto& [name, tensor] : before) {
        INFO(name);
        REQUIRE(after.count(name) == 1);
        CHECK(after.at(name).scalar_type() == at::kFloat);
        CHECK(at::equal(after.at(name), tensor.to(at::kFloat)));
      }
      Json expected = osdn::read_json(source + "/config.json");
      const Json found = osdn::read_json(back + "/config.json");
      for (const auto& harmless : ck::harmless_fla_keys()) expected.erase(harmless.key);
      expected.erase("torch_dtype");
      for (const auto& [key, value] : expected.items()) {
        INFO(key);
        CHECK(found.at(key) == value);
      }
    }
}

TEST_CASE("a bfloat16 or float16 directory comes back in its own dtype, bit by bit", "[exchange]") {
  for (const auto& [type, name] : {std::pair(at::kBFloat16, "bfloat16"), std::pair(at::kHalf, "float16")}) {
    const osdn::TemporaryDirectory folder;
    const std::string source = folder.path() + "/source";
    write_directory(source, authors_model(osdn::config::Retention::kOwnGate), {type});
    CHECK(run({"import", source, "--output", folder.path() + "/run"}).message.empty());
    CHECK(
        run({"export", folder.path() + "/run", "--output", folder.path() + "/back", "--dtype", name}).code ==
        0);
    CHECK(osdn::read_json(folder.path() + "/back/config.json")["torch_dtype"] == name);
    for (const auto& [tensor_name, tensor] : read_tensors(folder.path() + "/back")) {
      INFO(tensor_name);
      const at::Tensor original = read_tensors(source).at(tensor_name);
      const bool kept = tensor_name.find("norm") != std::string::npos || ck::stays_float32(tensor_name);
      CHECK(tensor.scalar_type() == (kept ? at::kFloat : type));
      CHECK(at::equal(tensor.to(at::kFloat), original.to(at::kFloat)));
    }
  }
}

TEST_CASE("a run of this program comes back from its export with the same weights and logits", "[exchange]") {
  for (osdn::config::Model model : models()) {
    if (model.osdn) model.osdn->clamp_initial_scale = true;
    if (model.osdn) model.osdn->detach = true;
    const osdn::TemporaryDirectory folder;
    osdn::config::Config config;
    config.run.name = "made";
    config.model = model;
    config.data.sequence_length = 3000;
    config.train.global_batch_tokens = 3000;
    ck::Snapshot snapshot;
    snapshot.step = 12;
    snapshot.weights = random_weights(model);
    snapshot.state = osdn::train::TrainState{.step = 12}.to_json();
    snapshot.state["config"] = osdn::config::dump(config);
    ck::Writer(folder.path() + "/made/checkpoints", checkpoint_test::options()).save(std::move(snapshot));

    CHECK(run({"export", folder.path() + "/made", "--output", folder.path() + "/out"}).message.empty());
    CHECK(run({"import", folder.path() + "/out", "--output", folder.path() + "/again"}).message.empty());
    const at::Tensor ids = osdn::apps::fixed_input(61);
    CHECK(
        at::equal(logits_of_run(folder.path() + "/again", ids), logits_of_run(folder.path() + "/made", ids)));
    const auto exported = read_tensors(folder.path() + "/out");
    for (const auto& [name, value] : random_weights(model)) {
      INFO(name);
      const bool start = name.find("initial_scale") != std::string::npos;
      CHECK(at::equal(exported.at(name), start ? value.clamp(0.5, 1.5) : value));
    }
    const std::string readme = osdn::read_file(folder.path() + "/out/README.md");
    CHECK(contains(readme, "detach: true") == model.osdn.has_value());
    CHECK(osdn::read_json(folder.path() + "/out/config.json")["norm_eps"] == model.norm_eps);
    // 3000 does not divide the default global batch: the configuration must still be a valid one.
    const osdn::config::Config again = osdn::config::load(folder.path() + "/again/config.yaml", {});
    CHECK(again.data.sequence_length == 3000);
  }
}

TEST_CASE("an imported checkpoint names its source and is weights only", "[exchange]") {
  const osdn::TemporaryDirectory folder;
  const std::string source = folder.path() + "/source";
  write_directory(source, plain_model());
  CHECK(run({"import", source, "--output", folder.path() + "/runs/a/"}).code == 0);
  const std::string step = folder.path() + "/runs/a/checkpoints/step_00000000";
  const ck::Verdict verdict = ck::verify(step);
  CHECK(verdict.intact);
  CHECK(verdict.weights_only);
  const Json origin = ck::load(step).snapshot.state["source"];
  CHECK(origin["imported_from"] == source);
  CHECK(origin["model_type"] == "delta_net");
  CHECK(origin["xxh3_128"]["model.safetensors"] == osdn::digest_file(source + "/model.safetensors").hex());
  const osdn::config::Config config = osdn::config::load(folder.path() + "/runs/a/config.yaml", {});
  CHECK(config.run.name == "a");
  CHECK(config.run.directory == folder.path() + "/runs");
  CHECK(config.model.num_layers == 2);
}

TEST_CASE("tied and untied heads: flag and tensors agree, and changes are asked for", "[exchange]") {
  const osdn::TemporaryDirectory folder;
  const std::string source = folder.path() + "/source";
  const auto import = [&](const char* name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"import", source, "--output", folder.path() + "/" + name};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const auto is_tied = [&](const char* name) {
    return osdn::config::load(folder.path() + "/" + name + "/config.yaml", {}).model.tie_embeddings;
  };
  osdn::config::Model model = plain_model();
  model.tie_embeddings = true;
  write_directory(source, model);
  const at::Tensor embeddings = read_tensors(source).at("model.embeddings.weight");

  CHECK(import("tied").code == 0);
  CHECK(is_tied("tied"));
  CHECK(run({"export", folder.path() + "/tied", "--output", folder.path() + "/tied-out"}).code == 0);
  CHECK(read_tensors(folder.path() + "/tied-out").count("lm_head.weight") == 0);
  CHECK(osdn::read_json(folder.path() + "/tied-out/config.json")["tie_word_embeddings"] == true);

  CHECK(import("untied", {"--tie-embeddings", "false"}).code == 0);
  CHECK(!is_tied("untied"));
  CHECK(run({"export", folder.path() + "/untied", "--output", folder.path() + "/untied-out"}).code == 0);
  CHECK(at::equal(read_tensors(folder.path() + "/untied-out").at("lm_head.weight"), embeddings));
  const at::Tensor ids = osdn::apps::fixed_input(61);
  CHECK(
      at::equal(logits_of_run(folder.path() + "/untied", ids), logits_of_run(folder.path() + "/tied", ids)));

  // Some writers store the shared matrix twice.
  change_tensor(source, "lm_head.weight", embeddings.clone());
  CHECK(import("twice").code == 0);
  CHECK(is_tied("twice"));
  // A changed head behind a flag that says tied must not be lost unasked.
  change_tensor(source, "lm_head.weight", embeddings + 1);
  CHECK(contains(import("lost").message, "lm_head.weight differs from model.embeddings.weight"));
  CHECK(import("kept", {"--tie-embeddings", "false"}).code == 0);
  CHECK(!is_tied("kept"));
  // Untied by the flag, but without a head.
  change_config(source, "tie_word_embeddings", false);
  CHECK(import("both").code == 0);
  CHECK(contains(import("refused", {"--tie-embeddings", "true"}).message, "lm_head.weight differs"));
  change_tensor(source, "lm_head.weight", at::Tensor());
  CHECK(contains(import("headless").message, "lm_head.weight is missing; pass --tie-embeddings true"));
  CHECK(contains(import("headless", {"--tie-embeddings", "false"}).message, "lm_head.weight is missing"));
  CHECK(import("retied", {"--tie-embeddings", "true"}).code == 0);
  CHECK(is_tied("retied"));
  CHECK(!fs::exists(folder.path() + "/lost"));
}

TEST_CASE("decay rates stored as [1, 1, heads, 1] are taken as [heads], and stay in float32", "[exchange]") {
  osdn::config::Model model = plain_model();
  model.backbone = osdn::config::Backbone::kKda;
  const osdn::TemporaryDirectory folder;
  const std::string source = folder.path() + "/source";
  const std::string name = "model.layers.0.attn.A_log";
  write_directory(source, model);
  const at::Tensor rates = at::full({1, 1, 2, 1}, std::log(7.3F));
  change_tensor(source, name, rates);
  CHECK(run({"import", source, "--output", folder.path() + "/run"}).message.empty());
  CHECK(run({"export", folder.path() + "/run", "--output", folder.path() + "/out", "--dtype", "bfloat16"})
            .message.empty());
  const at::Tensor exported = read_tensors(folder.path() + "/out").at(name);
  CHECK(exported.scalar_type() == at::kFloat);
  CHECK(at::equal(exported, rates.reshape({2})));
  // In bf16 they are taken with a warning: what was rounded stays so.
  change_tensor(source, name, rates.to(at::kBFloat16));
  const auto read = osdn::apps::read_exchange_directory(source, {});
  REQUIRE(read.warnings.size() == 1);
  CHECK(contains(read.warnings[0], name));
}

TEST_CASE("parameters that belong in float32 are taken from less with a warning", "[exchange]") {
  const osdn::TemporaryDirectory folder;
  write_directory(folder.path(), authors_model(osdn::config::Retention::kOwnGate), {at::kBFloat16});
  const auto read = osdn::apps::read_exchange_directory(folder.path(), {});
  REQUIRE(read.warnings.size() == 1);
  CHECK(contains(read.warnings[0], "6 of the tensors that belong in float32"));
  CHECK(contains(read.warnings[0], "model.layers.0.attn.initial_scale"));
  CHECK(read.dtype == "bfloat16");
  const osdn::TemporaryDirectory exact;
  write_directory(exact.path(), authors_model(osdn::config::Retention::kOwnGate));
  CHECK(osdn::apps::read_exchange_directory(exact.path(), {}).warnings.empty());
}

TEST_CASE("a start that the files lack is filled by request only", "[exchange]") {
  const osdn::TemporaryDirectory folder;
  const std::string source = folder.path() + "/source";
  write_directory(source, authors_model(osdn::config::Retention::kNone));
  change_tensor(source, "model.layers.1.attn.initial_scale", at::Tensor());
  const std::vector<std::string> import = {"import", source, "--output", folder.path() + "/run"};
  CHECK(contains(run(import).message, "model.layers.1.attn.initial_scale is missing; pass --initial-scale"));
  std::vector<std::string> filled = import;
  filled.insert(filled.end(), {"--initial-scale", "0"});
  CHECK(run(filled).code == 0);
  for (const auto& [name, value] :
       ck::load(folder.path() + "/run/checkpoints/step_00000000").snapshot.weights)
    if (name == "model.layers.1.attn.initial_scale") CHECK(value.abs().max().item<float>() == 0);
}

TEST_CASE("tensors that do not fit the model are refused by name and nothing is left", "[exchange]") {
  const osdn::TemporaryDirectory folder;
  const std::string source = folder.path() + "/source";
  const std::string name = "model.layers.0.attn.k_proj.weight";
  const auto refusal = [&](const std::string& tensor, const at::Tensor& value) {
    fs::remove_all(source);
    write_directory(source, plain_model());
    change_tensor(source, tensor, value);
    const Outcome outcome = run({"import", source, "--output", folder.path() + "/run"});
    CHECK(outcome.code == 4);
    CHECK(contains(outcome.message, tensor));
    return outcome.message;
  };
  CHECK(contains(refusal(name, at::Tensor()), "is missing"));
  CHECK(contains(refusal(name, at::zeros({32, 33})), "expected shape [32, 32] by config.json, got [32, 33]"));
  CHECK(contains(refusal(name, at::zeros({32, 32}, at::kDouble)), "expected dtype F32, BF16 or F16"));
  CHECK(contains(refusal(name, at::zeros({32, 32}, at::kLong)), "expected dtype F32, BF16 or F16"));
  CHECK(contains(refusal(name, at::full({32, 32}, std::nan(""))), "NaN or infinity"));
  CHECK(contains(refusal("model.layers.0.attn.A_log", at::zeros({2})), "no place"));
  CHECK(checkpoint_test::names_in(folder.path()) == std::vector<std::string>{"source"});
}

TEST_CASE("a config.json that claims more than the files hold is refused before memory is taken",
          "[exchange]") {
  const osdn::TemporaryDirectory folder;
  const auto claim = [&](const char* key, int64_t value) {
    fs::remove_all(folder.path());
    write_directory(folder.path(), authors_model(osdn::config::Retention::kNone));
    change_config(folder.path(), key, value);
    osdn::apps::ExchangeReadOptions options;
    options.initial_scale = 1.0;
    return checkpoint_test::message_of<osdn::DataError>(
        [&] { osdn::apps::read_exchange_directory(folder.path(), options); });
  };
  CHECK(contains(claim("num_hidden_layers", 1 << 20), "num_hidden_layers 1048576, but the files hold"));
  CHECK(contains(claim("hidden_size", 1 << 20), "got [61, 32]"));
  CHECK(contains(claim("vocab_size", 1 << 20), "got [61, 32]"));
  CHECK(contains(claim("intermediate_size", 1 << 20), "mlp.gate_proj.weight: expected shape [1048576, 32]"));
  CHECK(contains(claim("conv_size", 5), "q_conv1d.weight: expected shape [32, 1, 5]"));
}

TEST_CASE("unknown keys of config.json can be vouched for on the command line", "[exchange]") {
  const osdn::TemporaryDirectory folder;
  const std::string source = folder.path() + "/source";
  write_directory(source, plain_model());
  change_config(source, "my_note", "hello");
  const Outcome refused = run({"import", source, "--output", folder.path() + "/run"});
  CHECK(refused.code == 2);
  CHECK(contains(refused.message, "unknown key my_note"));
  CHECK(run({"import", source, "--output", folder.path() + "/run", "--ignore-key", "my_note"}).code == 0);
}

TEST_CASE("logits that differ from those given end the import and leave nothing", "[exchange]") {
  const osdn::TemporaryDirectory folder;
  const std::string source = folder.path() + "/source";
  const std::string expected = folder.path() + "/expected.safetensors";
  write_directory(source, plain_model());
  const at::Tensor ids = osdn::apps::fixed_input(61);
  const at::Tensor logits = osdn::apps::logits_of("x", plain_model(), random_weights(plain_model()), ids);
  const auto import = [&](const at::Tensor& some_ids, const at::Tensor& some_logits) {
    ck::write_safetensors(expected, {{"input_ids", some_ids}, {"logits", some_logits}}, {});
    return run({"import", source, "--output", folder.path() + "/run", "--verify", expected});
  };
  const Outcome wrong = import(ids, (logits * 1.001).contiguous());
  CHECK(wrong.code == 4);
  CHECK(contains(wrong.message, "relative RMS difference 9.99e-04, allowed 1e-04"));
  CHECK(import(ids, logits.narrow(2, 0, 60).contiguous()).code == 2);
  CHECK(import(ids + 1000, logits).code == 2);
  CHECK(import(ids.to(at::kFloat), logits).code == 2);
  CHECK(checkpoint_test::names_in(folder.path()) ==
        std::vector<std::string>{"expected.safetensors", "source"});
  CHECK(import(ids.to(at::kInt), logits).message.empty());
}

TEST_CASE(
    "an export refuses what it cannot express, a dtype that does not bear the weights, and a name in use",
    "[exchange]") {
  const osdn::TemporaryDirectory folder;
  const std::string source = folder.path() + "/source";
  const std::string out = folder.path() + "/out";
  write_directory(source, plain_model());
  change_tensor(source, "lm_head.weight", at::full({61, 32}, 1e6));
  CHECK(run({"import", source, "--output", folder.path() + "/run"}).code == 0);
  const Outcome overflow = run({"export", folder.path() + "/run", "--output", out, "--dtype", "float16"});
  CHECK(overflow.code == 4);
  CHECK(contains(overflow.message, "tensor lm_head.weight holds NaN or infinity in float16"));
  CHECK(run({"export", folder.path() + "/run", "--output", out, "--dtype", "int8"}).code == 2);
  CHECK(contains(
      run({"export", folder.path() + "/run", "--output", out, "--max-shard-size", "5 bananas"}).message,
      "--max-shard-size"));
  CHECK(contains(run({"export", folder.path() + "/run", "--output", source}).message, "exists"));
  CHECK(contains(run({"import", source, "--output", folder.path() + "/run"}).message, "exists"));
  CHECK(contains(run({"export", folder.path() + "/nowhere", "--output", out}).message,
                 "expected a run directory"));
  CHECK(!fs::exists(out));
  CHECK(run({"export", folder.path() + "/run", "--output", out}).code == 0);
  CHECK(checkpoint_test::names_in(out) ==
        std::vector<std::string>{"README.md", "config.json", "generation_config.json", "model.safetensors"});
}

TEST_CASE("an own export with many shards is consistent when it is read again", "[exchange]") {
  const osdn::TemporaryDirectory folder;
  write_directory(folder.path() + "/source", plain_model());
  CHECK(run({"import", folder.path() + "/source", "--output", folder.path() + "/run"}).code == 0);
  CHECK(run({"export", folder.path() + "/run", "--output", folder.path() + "/out", "--max-shard-size", "1"})
            .code == 0);
  CHECK(checkpoint_test::names_in(folder.path() + "/out").size() > 30);
  CHECK(run({"import", folder.path() + "/out", "--output", folder.path() + "/again"}).code == 0);
}

}  // namespace exchange_test
