// import and export as a user runs them: the OSDN authors' checkpoint, and models trained here.
#include <set>

#include "tests/integration/run_fixture.h"
#include "tests/support/raw_safetensors.h"

namespace osdn::test {
namespace {

constexpr const char* kGolden = OSDN_SOURCE_DIR "/tests/golden/";

/// The directory that another implementation would have saved: its config.json and the param.* tensors.
void write_foreign_directory(const std::string& golden, const std::string& path) {
  create_directories(path);
  RawTensors weights;
  for (auto& [name, tensor] : read_raw_safetensors(kGolden + golden + ".safetensors"))
    if (name.rfind("param.", 0) == 0) weights[name.substr(6)] = tensor;
  write_raw_safetensors(path + "/model.safetensors", weights);
  atomic_write(path + "/config.json", read_file(kGolden + golden + ".config.json"));
}

struct Foreign {
  const char* golden;
  const char* model_type;
  const char* tolerance;  // of the logits: tests/golden/README.md
};

TEST_CASE("another implementation's directory gives its logits and comes back bit by bit", "[exchange]") {
  for (const Foreign& foreign :
       {Foreign{"osdn_run2", "osla_delta_net", "1e-4"}, Foreign{"os_kda", "os_kda", "1e-3"},
        Foreign{"gated_deltanet", "gated_deltanet", "1e-4"}}) {
    INFO(foreign.golden);
    const TemporaryDirectory folder;
    write_foreign_directory(foreign.golden, folder.path() + "/theirs");
    const ProcessResult imported = run_osdn(
        {"import", "theirs", "--output", "runs/ours", "--verify",
         std::string(kGolden) + foreign.golden + ".safetensors", "--verify-tolerance", foreign.tolerance},
        folder.path());
    INFO(imported.err);
    REQUIRE(imported.exit_code == 0);
    check_mentions(imported.out, {foreign.model_type, "logits agree with"});
    check_mentions(run_osdn({"inspect", "runs/ours"}, folder.path()).out, {"weights only", "intact"});

    const ProcessResult exported =
        run_osdn({"export", "runs/ours", "--output", "back", "--max-shard-size", "100KB"}, folder.path());
    INFO(exported.err);
    REQUIRE(exported.exit_code == 0);
    CHECK((read_raw_model(folder.path() + "/back") == read_raw_model(folder.path() + "/theirs")));
    const Json before = read_json(folder.path() + "/theirs/config.json");
    const Json after = read_json(folder.path() + "/back/config.json");
    // Records, and settings of the loss and of Python calls.
    const std::set<std::string> harmless = {"architectures", "fuse_cross_entropy", "use_cache"};
    int num_compared = 0;
    for (const auto& [key, value] : after.items()) {
      if (!before.contains(key) || harmless.count(key)) continue;
      INFO(key);
      CHECK(value == before.at(key));
      ++num_compared;
    }
    CHECK(num_compared > 25);
  }
}

TEST_CASE("other weights than the authors' do not pass for theirs", "[exchange]") {
  const TemporaryDirectory folder;
  write_foreign_directory("osdn_run2", folder.path() + "/authors");
  RawTensors weights = read_raw_model(folder.path() + "/authors");
  std::string& scale = weights.at("model.layers.0.attn.initial_scale").bytes;
  scale[3] = static_cast<char>(scale[3] ^ 0x40);  // exponent of the first element
  write_raw_safetensors(folder.path() + "/authors/model.safetensors", weights);
  const ProcessResult result = run_osdn({"import", "authors", "--output", "runs/run2", "--verify",
                                         std::string(kGolden) + "osdn_run2.safetensors"},
                                        folder.path());
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
