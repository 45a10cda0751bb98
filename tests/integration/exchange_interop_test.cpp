// Against the reference implementations of what an export consists of, from the Python package index:
// safetensors and sentencepiece.
#include <cstdio>
#include <optional>

#include "tests/integration/run_fixture.h"
#include "tests/support/raw_safetensors.h"

namespace osdn::test {
namespace exchange_interop {

/// Runs Python files with some packages. Empty where they cannot be had: the reason is printed, and CTest
/// counts the test as skipped by it.
class Python {
 public:
  static std::optional<Python> with(const std::vector<std::string>& packages, const std::string& directory) {
    std::vector<std::string> arguments = {"/bin/bash", OSDN_SOURCE_DIR "/tests/interop/packages.sh"};
    arguments.insert(arguments.end(), packages.begin(), packages.end());
    const ProcessResult result = Process(arguments, directory).wait();
    if (result.exit_code == 0) return Python(result.out.substr(0, result.out.find('\n')), directory);
    std::fputs(result.err.c_str(), stderr);
    REQUIRE(result.exit_code == 77);
    return std::nullopt;
  }
  std::string run(const std::string& script, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"/usr/bin/env", "python3",
                                          OSDN_SOURCE_DIR "/tests/interop/" + script};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult result = Process(arguments, directory_, {{"PYTHONPATH", path_}}).wait();
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return result.out;
  }

 private:
  Python(std::string path, std::string directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}
  std::string path_;
  std::string directory_;
};

void run_ok(const std::vector<std::string>& arguments, const std::string& directory) {
  const ProcessResult result = run_osdn(arguments, directory);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
}

TEST_CASE("the reference reads exported files, writes the same bytes from them, and its files come in",
          "[exchange_interop][interop]") {
  const RunFolder folder;
  const auto python = Python::with({"safetensors==0.8.0"}, folder.path());
  if (!python) return;
  const auto path = [&](const std::string& name) { return folder.path() + "/" + name; };
  REQUIRE(folder.train({"train.steps=1", "model.osdn={preset: osdn_authors_may, retention: own_gate}"})
              .exit_code == 0);
  for (const std::string dtype : {"float32", "bfloat16", "float16"}) {
    INFO(dtype);
    run_ok({"export", "runs/small", "--output", dtype, "--dtype", dtype, "--max-shard-size", "100KB"},
           folder.path());
    const auto shards = glob_paths(path(dtype) + "/model-*.safetensors");
    REQUIRE(shards.size() > 1);
    for (const std::string& shard : shards) {
      python->run("reference_safetensors.py", {"rewrite", shard, path("rewritten")});
      CHECK((read_file(path("rewritten")) == read_file(shard)));
    }
    // A directory whose one file the reference wrote.
    create_directories(path(dtype + "-one"));
    write_raw_safetensors(path("joined"), read_raw_model(path(dtype)));
    python->run("reference_safetensors.py",
                {"rewrite", path("joined"), path(dtype + "-one") + "/model.safetensors"});
    atomic_write(path(dtype + "-one") + "/config.json", read_file(path(dtype) + "/config.json"));
    run_ok({"import", dtype + "-one", "--output", "runs/" + dtype}, folder.path());
    run_ok({"export", "runs/" + dtype, "--output", dtype + "-again", "--dtype", dtype}, folder.path());
    CHECK((read_raw_model(path(dtype + "-again")) == read_raw_model(path(dtype))));
  }
}

TEST_CASE("what the reference refuses is refused, what it reads is read", "[exchange_interop][interop]") {
  const TemporaryDirectory folder;
  const auto python = Python::with({"safetensors==0.8.0"}, folder.path());
  if (!python) return;
  const Json verdicts = Json::parse(
      python->run("reference_safetensors.py",
                  {"damage", OSDN_SOURCE_DIR "/tests/golden/osdn_run2.safetensors", folder.path()}));
  REQUIRE(verdicts.size() > 20);
  for (const auto& [file, reads] : verdicts.items()) {
    INFO(file);
    CHECK(run_osdn({"inspect", file}, folder.path()).exit_code == (reads.get<bool>() ? 0 : 4));
  }
}

TEST_CASE("the shipped tokenizer gives the sentencepiece library the ids that this program uses",
          "[exchange_interop][interop]") {
  const RunFolder folder;
  const auto python = Python::with({"sentencepiece==0.2.3"}, folder.path());
  if (!python) return;
  REQUIRE(folder.train({"train.steps=1", "model.osdn=null"}).exit_code == 0);
  run_ok({"export", "runs/small", "--output", "out"}, folder.path());
  python->run("reference_sentencepiece.py", {"text", folder.path() + "/text"});
  const std::string text = read_file(folder.path() + "/text");
  const std::string model = folder.path() + "/out/tokenizer.model";
  const Json expected =
      Json::parse(python->run("reference_sentencepiece.py", {"encode", model, folder.path() + "/text"}));
  const ProcessResult encoded = run_osdn({"tokenizer", "encode", model, "--text=" + text}, folder.path());
  INFO(encoded.err);
  std::istringstream stream(encoded.out);
  Json ids = Json::array();
  for (int64_t id = 0; stream >> id;) ids.push_back(id);
  CHECK(ids.size() > 5000);
  CHECK((ids == expected));
  atomic_write(folder.path() + "/ids", ids.dump());
  CHECK((python->run("reference_sentencepiece.py", {"decode", model, folder.path() + "/ids"}) == text));
}

}  // namespace exchange_interop
}  // namespace osdn::test
