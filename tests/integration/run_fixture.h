// A folder with prepared shards and a small configuration, shared by the integration tests of one process.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/json.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn::test {

/// 1 MB of the built-in corpus and a tokenizer of 512 pieces under <folder>/shards; made once.
inline const std::string& prepared_folder() {
  static const TemporaryDirectory folder;
  static const bool prepared = [] {
    const ProcessResult result = run_osdn({"prepare", "--builtin", "--megabytes", "1", "--vocab-size", "512",
                                           "--validation-fraction", "0.05", "--output", "shards"},
                                          folder.path());
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return true;
  }();
  static_cast<void>(prepared);
  return folder.path();
}

/// A two-layer OSDN-APF model; 12 steps of 8 x 64 tokens.
inline std::string small_run_yaml() {
  return R"(run: {name: small, directory: runs, seed: 7}
model:
  backbone: delta_net
  hidden_size: 64
  num_layers: 2
  num_heads: 2
  head_dim: 32
  intermediate_size: 96
  osdn: {preset: osdn_apf}
data:
  train: [shards/train-*.h5]
  validation: [shards/valid-*.h5]
  tokenizer: shards/tokenizer.model
  sequence_length: 64
optimizer: {learning_rate: 2.0e-3, warmup_steps: 4}
train: {steps: 12, global_batch_tokens: 512, micro_batch_sequences: 4}
checkpoint: {every_steps: 3, keep_last: 2, keep_every_steps: 0}
evaluation: {every_steps: 6, sequences: 8}
metrics: {residual_every_steps: 2}
)";
}

/// A fresh folder whose `shards` links to the prepared ones, with small.yaml in it.
class RunFolder {
 public:
  RunFolder() {
    std::filesystem::create_directory_symlink(prepared_folder() + "/shards", folder_.path() + "/shards");
    atomic_write(folder_.path() + "/small.yaml", small_run_yaml());
  }
  const std::string& path() const { return folder_.path(); }
  std::string run(const std::string& name = "small") const { return folder_.path() + "/runs/" + name; }

  std::vector<std::string> train_arguments(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> arguments = {"train", "small.yaml"};
    for (const std::string& override : overrides) arguments.insert(arguments.end(), {"--set", override});
    return arguments;
  }
  ProcessResult train(const std::vector<std::string>& overrides = {}) const {
    return run_osdn(train_arguments(overrides), folder_.path());
  }
  /// Beside another process of this folder: prints into `output` instead.
  ProcessResult train_beside(const std::string& output) const {
    std::vector<std::string> arguments = {OSDN_BINARY, "train", folder_.path() + "/small.yaml", "--set",
                                          "run.directory=" + folder_.path() + "/runs"};
    return Process(arguments, output).wait();
  }
  /// In the background.
  Process start_training(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> arguments = train_arguments(overrides);
    arguments.insert(arguments.begin(), OSDN_BINARY);
    return Process(arguments, folder_.path());
  }

 private:
  TemporaryDirectory folder_;
};

/// metrics.jsonl without the fields that tell time and memory.
inline std::vector<Json> timeless_metrics(const std::string& run) {
  std::vector<Json> lines;
  std::istringstream stream(read_file(run + "/metrics.jsonl"));
  for (std::string line; std::getline(stream, line);) {
    Json record = Json::parse(line);
    for (const char* field : {"tokens_per_second", "tokens_per_second_per_gpu", "mfu", "gemm_utilization",
                              "step_milliseconds", "data_wait_milliseconds", "memory_gib"})
      record.erase(field);
    lines.push_back(std::move(record));
  }
  return lines;
}

/// Weights and moments of a checkpoint, byte for byte.
inline std::string model_bytes(const std::string& run, int64_t step) {
  const std::string directory = run + "/checkpoints/" + fmt::format("step_{:08d}", step);
  return read_file(directory + "/model.safetensors") + read_file(directory + "/optimizer-0-of-1.safetensors");
}

/// The message names all of these.
inline void check_mentions(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    INFO("looking for \"" << part << "\" in:\n" << text);
    CHECK(text.find(part) != std::string::npos);
  }
}

/// A trained run, made once for all cases that leave it as it is.
inline const RunFolder& trained_run() {
  static const RunFolder folder;
  static const bool ready = [] {
    const ProcessResult result = folder.train();
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return true;
  }();
  static_cast<void>(ready);
  return folder;
}

}  // namespace osdn::test
