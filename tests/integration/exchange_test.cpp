// import and export as a user runs them: the OSDN authors' checkpoint, and models trained here.
#include "tests/integration/run_fixture.h"
#include "tests/support/raw_safetensors.h"

namespace osdn::test {
namespace {

constexpr const char* kGolden = OSDN_SOURCE_DIR "/tests/golden/osdn_run2.safetensors";

/// The directory that the authors' code would have saved: its config.json and the param.* tensors.
void write_authors_directory(const std::string& path) {
  create_directories(path);
  RawTensors weights;
  for (auto& [name, tensor] : read_raw_safetensors(kGolden))
    if (name.rfind("param.", 0) == 0) weights[name.substr(6)] = tensor;
  write_raw_safetensors(path + "/model.safetensors", weights);
  atomic_write(path + "/config.json", read_file(OSDN_SOURCE_DIR "/tests/golden/osdn_run2.config.json"));
}

TEST_CASE("the authors' directory gives the authors' logits and comes back bit by bit", "[exchange]") {
  const TemporaryDirectory folder;
  write_authors_directory(folder.path() + "/authors");
  // 1e-4: the authors' kernels sum in other orders; 8.8e-7 was seen for a float64 recurrence.
  const ProcessResult imported = run_osdn(
      {"import", "authors", "--output", "runs/run2", "--verify", kGolden, "--verify-tolerance", "1e-4"},
      folder.path());
  INFO(imported.err);
  REQUIRE(imported.exit_code == 0);
  check_mentions(imported.out, {"osla_delta_net", "logits agree with"});
  check_mentions(run_osdn({"inspect", "runs/run2"}, folder.path()).out, {"weights only", "intact"});

  const ProcessResult exported =
      run_osdn({"export", "runs/run2", "--output", "back", "--max-shard-size", "100KB"}, folder.path());
  INFO(exported.err);
  REQUIRE(exported.exit_code == 0);
  CHECK((read_raw_model(folder.path() + "/back") == read_raw_model(folder.path() + "/authors")));
  const Json before = read_json(folder.path() + "/authors/config.json");
  const Json after = read_json(folder.path() + "/back/config.json");
  for (const char* key : {"model_type",
                          "hidden_size",
                          "num_hidden_layers",
                          "num_heads",
                          "expand_k",
                          "expand_v",
                          "intermediate_size",
                          "hidden_ratio",
                          "norm_eps",
                          "vocab_size",
                          "tie_word_embeddings",
                          "use_osgm",
                          "osgm_eta",
                          "osgm_use_denominator",
                          "osgm_d_min",
                          "osgm_d_max",
                          "osgm_decay",
                          "osgm_decay_mode",
                          "bos_token_id",
                          "eos_token_id",
                          "pad_token_id",
                          "qk_norm",
                          "qk_activation",
                          "use_gate",
                          "use_beta",
                          "use_short_conv",
                          "conv_size",
                          "initializer_range",
                          "attn",
                          "hidden_act"}) {
    INFO(key);
    CHECK(after.at(key) == before.at(key));
  }
}

TEST_CASE("other weights than the authors' do not pass for theirs", "[exchange]") {
  const TemporaryDirectory folder;
  write_authors_directory(folder.path() + "/authors");
  RawTensors weights = read_raw_model(folder.path() + "/authors");
  std::string& scale = weights.at("model.layers.0.attn.initial_scale").bytes;
  scale[3] = static_cast<char>(scale[3] ^ 0x40);  // exponent of the first element
  write_raw_safetensors(folder.path() + "/authors/model.safetensors", weights);
  const ProcessResult result =
      run_osdn({"import", "authors", "--output", "runs/run2", "--verify", kGolden}, folder.path());
  CHECK(result.exit_code == 4);
  check_mentions(result.err, {"logits differ"});
  CHECK(!std::filesystem::exists(folder.path() + "/runs/run2"));
}

TEST_CASE("a trained model goes out with its tokenizer, comes back, writes the same text and trains on",
          "[exchange]") {
  const RunFolder folder;
  const auto osdn = [&](const std::vector<std::string>& arguments) {
    const ProcessResult result = run_osdn(arguments, folder.path());
    INFO(result.err);
    CHECK(result.exit_code == 0);
    return result.out;
  };
  const std::string authors_rule = "model.osdn={preset: osdn_authors_may, retention: own_gate}";
  REQUIRE(folder.train({"train.steps=3", authors_rule}).exit_code == 0);
  osdn({"export", "runs/small", "--output", "out"});
  const std::string model = read_file(folder.path() + "/out/tokenizer.model");
  CHECK(model == read_file(folder.path() + "/shards/tokenizer.model"));
  check_mentions(read_file(folder.path() + "/out/README.md"), {"byte for byte", "osla_delta_net", "step 3"});
  const Json config = read_json(folder.path() + "/out/config.json");
  CHECK(config["bos_token_id"].is_number_integer());
  CHECK(config["vocab_size"] == 512);

  osdn({"import", "out", "--output", "runs/again"});
  // The same numbers under both names: perplexity, and greedy text.
  const auto perplexity = [&](const char* run) {
    osdn({"eval", run, "--suite", "perplexity", "--max-documents", "5", "--data", "shards/valid-*.h5",
          "--json", "result.json"});
    Json result = read_json(folder.path() + "/result.json");
    for (const char* key : {"checkpoint", "step", "seconds"}) result.erase(key);
    return result.dump();
  };
  CHECK(perplexity("runs/again") == perplexity("runs/small"));
  const std::vector<std::string> greedy = {"--prompt", "The", "--max-tokens", "24", "--temperature", "0"};
  std::vector<std::string> first = {"generate", "runs/small"};
  std::vector<std::string> second = {"generate", "runs/again"};
  first.insert(first.end(), greedy.begin(), greedy.end());
  second.insert(second.end(), greedy.begin(), greedy.end());
  CHECK(osdn(first) == osdn(second));

  const ProcessResult trained =
      folder.train({"train.steps=2", authors_rule, "run.name=on", "run.init_from=" + folder.run("again")});
  INFO(trained.err);
  CHECK(trained.exit_code == 0);
  check_mentions(trained.err, {"weights start from"});
}

TEST_CASE("the paper's beta-aware rule has no place in the authors' format: refused by key", "[exchange]") {
  const RunFolder folder;
  REQUIRE(folder.train({"train.steps=1"}).exit_code == 0);
  const ProcessResult result = run_osdn({"export", "runs/small", "--output", "out"}, folder.path());
  CHECK(result.exit_code == 2);
  check_mentions(result.err, {"model.osdn.hypergradient", "beta_aware"});
  CHECK(!std::filesystem::exists(folder.path() + "/out"));
}

}  // namespace
}  // namespace osdn::test
