#include "apps/inspect.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/inspect_findings.h"
#include "checkpoint/safetensors.h"
#include "data/shard.h"
#include "tests/apps/synthetic_run.h"
#include "tests/checkpoint/support.h"

namespace inspect_test {

/// Runs `osdn inspect PATH`; the exit code it asks for, and its message.
struct Outcome {
  int code = 0;
  std::string message;
};

Outcome inspect(const std::string& path) {
  CLI::App root;
  osdn::apps::add_inspect(root);
  const char* arguments[] = {"osdn", "inspect", path.c_str()};
  try {
    root.parse(3, arguments);
  } catch (const osdn::Error& failure) {
    return {static_cast<int>(failure.code()), failure.what()};
  }
  return {};
}

void flip_last_byte(const std::string& path) {
  std::string bytes = osdn::read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  checkpoint_test::write_bytes(path, bytes);
}

}  // namespace inspect_test

TEST_CASE("an intact run, checkpoint and tensor file pass, a flipped bit is code 4 and named", "[inspect]") {
  const osdn::TemporaryDirectory directory;
  const std::string run = apps_test::write_run(directory.path(), {.steps = 3});
  const std::string checkpoint = checkpoint_test::write_one(run + "/checkpoints", 3);
  for (const std::string& path :
       {run, run + "/checkpoints/", checkpoint, checkpoint + "/", checkpoint + "/model.safetensors"}) {
    INFO(path);
    CHECK(inspect_test::inspect(path).message.empty());
  }
  inspect_test::flip_last_byte(checkpoint + "/model.safetensors");
  for (const std::string& path : {run, run + "/checkpoints", checkpoint}) {
    const auto outcome = inspect_test::inspect(path);
    CHECK(outcome.code == 4);
    CHECK(checkpoint_test::contains(outcome.message, "model.safetensors: altered"));
  }
}

TEST_CASE("a shard is checked to its last token", "[inspect]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/train-00000.h5";
  {
    osdn::data::ShardWriter writer(path,
                                   {.tokenizer_digest = "t", .vocab_size = 100, .source_names = {"a.txt"}});
    writer.add_document({1, 2, 3, 4}, 9);
    writer.add_document(std::vector<int32_t>(500, 77), 900);
    writer.finish();
  }
  CHECK(inspect_test::inspect(path).message.empty());
  CHECK(inspect_test::inspect(directory.path()).code == 0);
  std::string bytes = osdn::read_file(path);
  const size_t position = bytes.find("M\0M\0M\0M\0", 0, 8);  // 77 as uint16, four times
  REQUIRE(position != std::string::npos);
  bytes[position] = 'L';
  checkpoint_test::write_bytes(path, bytes);
  const auto outcome = inspect_test::inspect(directory.path());
  CHECK(outcome.code == 4);
  CHECK(checkpoint_test::contains(outcome.message, "train-00000.h5"));
}

TEST_CASE("what the program did not make is a user error", "[inspect]") {
  const osdn::TemporaryDirectory directory;
  CHECK(inspect_test::inspect(directory.path()).code == 2);
  CHECK(inspect_test::inspect(directory.path() + "/absent").code == 2);
  checkpoint_test::write_bytes(directory.path() + "/notes.txt", "mine");
  CHECK(inspect_test::inspect(directory.path() + "/notes.txt").code == 2);
}

TEST_CASE("an empty directory with a checkpoint's name is a damaged checkpoint", "[inspect]") {
  const osdn::TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path() + "/step_00000600");
  const auto outcome = inspect_test::inspect(directory.path() + "/step_00000600");
  CHECK(outcome.code == 4);
  CHECK(checkpoint_test::contains(outcome.message, "manifest.json: missing"));
}

TEST_CASE("a folder of shards of two tokenizers, or without a file that prepare.json names, is damaged",
          "[inspect]") {
  const osdn::TemporaryDirectory directory;
  const auto write = [&](const std::string& name, const std::string& digest) {
    osdn::data::ShardWriter writer(
        directory.path() + "/" + name,
        {.tokenizer_digest = digest, .vocab_size = 100, .source_names = {"a.txt"}});
    writer.add_document({1, 2, 3, 4}, 9);
    writer.finish();
  };
  write("train-00000.h5", "one");
  write("train-00001.h5", "one");
  osdn::atomic_write(directory.path() + "/prepare.json", "{\"files\": [\"train-00000.h5\"]}");
  CHECK(inspect_test::inspect(directory.path()).code == 0);
  osdn::atomic_write(directory.path() + "/prepare.json", "{\"files\": [\"train-00002.h5\"]}");
  CHECK(checkpoint_test::contains(inspect_test::inspect(directory.path()).message,
                                  "names \"train-00002.h5\", which is not there"));
  osdn::atomic_write(directory.path() + "/prepare.json", "{\"files\": [");
  CHECK(inspect_test::inspect(directory.path()).code == 4);
  osdn::atomic_write(directory.path() + "/prepare.json", "{}");
  write("valid-00000.h5", "two");
  CHECK(checkpoint_test::contains(inspect_test::inspect(directory.path()).message, "2 different tokenizers"));
}

TEST_CASE("a weight that is not finite is found though every digest fits", "[inspect]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/model.safetensors";
  at::Tensor weight = at::ones({3, 4});
  osdn::checkpoint::write_safetensors(path, {{"a.weight", weight}}, {});
  CHECK(inspect_test::inspect(path).code == 0);
  weight[1][2] = std::nan("");
  weight[2][3] = HUGE_VAL;
  osdn::checkpoint::write_safetensors(path, {{"a.weight", weight}}, {});
  const auto outcome = inspect_test::inspect(path);
  CHECK(outcome.code == 4);
  CHECK(checkpoint_test::contains(outcome.message, "a.weight: 2 of 12 elements are NaN or infinite"));
}

TEST_CASE("a run's damaged metrics and configuration are named; a run without steps is no damage",
          "[inspect]") {
  const osdn::TemporaryDirectory directory;
  const std::string run = apps_test::write_run(directory.path(), {.steps = 5});
  std::vector<osdn::apps::Finding> findings;
  osdn::apps::inspect_path(run, &findings);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].kind == "run");
  CHECK(findings[0].facts["last_step"] == 5);
  const std::string metrics = osdn::read_file(run + "/metrics.jsonl");
  checkpoint_test::write_bytes(run + "/metrics.jsonl", "{\"ste\n" + metrics);
  CHECK(checkpoint_test::contains(inspect_test::inspect(run).message, "metrics.jsonl:1: damaged"));
  checkpoint_test::write_bytes(run + "/metrics.jsonl", "");
  CHECK(inspect_test::inspect(run).code == 0);
  checkpoint_test::write_bytes(run + "/config.yaml", "train: {stepz: 3}\n");
  CHECK(checkpoint_test::contains(inspect_test::inspect(run).message, "stepz"));
}
