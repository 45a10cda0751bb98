#include "apps/inspect.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "data/shard.h"
#include "tensor/torch.h"

namespace osdn::apps {
namespace inspect_detail {

namespace fs = std::filesystem;

std::string in_units(uint64_t bytes) {
  if (bytes < (uint64_t{1} << 20)) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

template <typename... Args>
void print(fmt::format_string<Args...> text, Args&&... args) {
  std::fputs((fmt::format(text, std::forward<Args>(args)...) + "\n").c_str(), stdout);
}

/// Each function prints what it found and appends what is damaged to `problems`.
void inspect_shard(const std::string& path, std::vector<std::string>* problems) {
  try {
    const data::ShardReader shard(path);
    print("{}: token shard", path);
    print("  {} tokens ({}) in {} documents, {:.3f} bytes of text a token", shard.num_tokens(),
          shard.stored_type(), shard.num_documents(),
          static_cast<double>(shard.text_bytes()) / static_cast<double>(shard.num_tokens()));
    print("  vocabulary {}, tokenizer {}", shard.vocab_size(), shard.tokenizer_digest());
    shard.verify();
    print("  intact");
  } catch (const DataError& failure) {
    problems->push_back(failure.what());
    print("  DAMAGED: {}", failure.what());
  }
}

void inspect_safetensors(const std::string& path, std::vector<std::string>* problems) {
  try {
    const checkpoint::SafetensorsFile file = checkpoint::read_safetensors(path);
    int64_t num_elements = 0;
    for (const auto& [name, tensor] : file.tensors) num_elements += tensor.numel();
    print("{}: safetensors file, {} tensors, {} elements", path, file.tensors.size(), num_elements);
    for (const auto& [name, tensor] : file.tensors)
      print("  {} {} {}", name, c10::toString(tensor.scalar_type()), Json(tensor.sizes().vec()).dump());
    print("  well formed (a digest only exists in a checkpoint's manifest)");
  } catch (const DataError& failure) {
    problems->push_back(failure.what());
    print("{}: DAMAGED: {}", path, failure.what());
  }
}

uint64_t directory_bytes(const std::string& path) {
  uint64_t total = 0;
  for (const std::string& name : checkpoint::list_names(path)) {
    std::error_code failure;
    const uint64_t size_bytes = fs::file_size(path + "/" + name, failure);
    if (!failure) total += size_bytes;
  }
  return total;
}

void inspect_checkpoint(const std::string& path, std::vector<std::string>* problems) {
  const checkpoint::Verdict verdict = checkpoint::verify(path);
  if (!verdict.intact) {
    problems->push_back(verdict.problem);
    print("{}: checkpoint, DAMAGED: {}", path, verdict.problem);
    return;
  }
  print("{}: checkpoint of step {}, {}, {}, intact", path, verdict.step,
        verdict.weights_only ? "weights only" : "weights and optimiser state",
        in_units(directory_bytes(path)));
}

void inspect_checkpoints(const std::string& path, std::vector<std::string>* problems) {
  std::vector<std::string> strangers;
  const auto steps = checkpoint::list_steps(path, &strangers);
  if (steps.empty()) print("{}: no checkpoint yet", path);
  for (const checkpoint::StepEntry& entry : steps) inspect_checkpoint(path + "/" + entry.name, problems);
  for (const std::string& stranger : strangers) print("{}/{}; ignored", path, stranger);
  for (const std::string& name : checkpoint::list_names(path))
    if (checkpoint::is_leftover(name)) print("{}/{}: unfinished, ignored", path, name);
}

void inspect_run(const std::string& path, std::vector<std::string>* problems) {
  print("{}: run directory", path);
  const std::string metrics = path + "/metrics.jsonl";
  if (fs::exists(metrics)) {
    const std::string text = read_file(metrics);
    const auto num_lines = std::count(text.begin(), text.end(), '\n');
    const bool torn = !text.empty() && text.back() != '\n';
    print("{}: {} lines{}", metrics, num_lines, torn ? " and an unfinished one" : "");
  }
  inspect_checkpoints(path + "/checkpoints", problems);
}

void inspect(const std::string& given, std::vector<std::string>* problems) {
  const std::string path = fs::path(given).lexically_normal().string();
  if (fs::is_regular_file(path)) {
    const std::string extension = fs::path(path).extension().string();
    if (extension == ".h5" || extension == ".hdf5") return inspect_shard(path, problems);
    if (extension == ".safetensors") return inspect_safetensors(path, problems);
    throw UserError("{}: expected a shard (.h5), a .safetensors file, a checkpoint or a run directory",
                    given);
  }
  if (!fs::is_directory(path)) throw UserError("{}: no such file or directory", given);
  const bool named = checkpoint::parse_step_name(checkpoint::base_name(path)).has_value();
  if (named || fs::exists(path + "/" + checkpoint::kManifestFile)) return inspect_checkpoint(path, problems);
  if (fs::exists(path + "/metrics.jsonl") || fs::is_directory(path + "/checkpoints"))
    return inspect_run(path, problems);
  if (!checkpoint::list_steps(path).empty()) return inspect_checkpoints(path, problems);
  const std::vector<std::string> shards = glob_paths(path + "/*.h5");
  if (shards.empty())
    throw UserError(
        "{}: neither a run (metrics.jsonl, checkpoints), a checkpoint (manifest.json) nor a folder of shards",
        given);
  for (const std::string& shard : shards) inspect_shard(shard, problems);
}

}  // namespace inspect_detail

void add_inspect(CLI::App& root) {
  const auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* command = root.add_subcommand(
      "inspect", "Say what a shard, checkpoint or run directory is, and whether it is intact");
  command->add_option("PATH", *paths, "Shards (.h5), folders of them, checkpoints, run directories")
      ->required();
  command->footer(
      "Example:\n  osdn inspect runs/quickstart-osdn\nReads everything; exit code 4 when something is "
      "damaged.");
  command->callback([paths] {
    std::vector<std::string> problems;
    for (const std::string& path : *paths) inspect_detail::inspect(path, &problems);
    if (!problems.empty())
      throw DataError("{} damaged: {}",
                      problems.size() == 1 ? "1 thing is" : fmt::format("{} things are", problems.size()),
                      problems.front());
  });
}

}  // namespace osdn::apps
