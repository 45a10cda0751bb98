#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/optimizer_shard.h"
#include "checkpoint/safetensors.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace load_detail {

/// One pass over the file: its tensors and the digest that the manifest must confirm.
SafetensorsFile read_verified(const std::string& directory, const ManifestFile& file) {
  Digest128 found;
  SafetensorsFile content = read_safetensors(directory + "/" + file.name, &found);
  check_digest(directory, file, found.hex());
  return content;
}

std::vector<NamedTensor> to_weights(const std::string& path, SafetensorsFile&& content) {
  std::vector<NamedTensor> weights;
  for (auto& [name, tensor] : content.tensors) {
    if (tensor.scalar_type() != at::kFloat)
      throw DataError("{}: tensor {}: expected dtype F32, got {}", path, name,
                      c10::toString(tensor.scalar_type()));
    weights.push_back({name, std::move(tensor)});
  }
  return weights;
}

/// Says so when `latest` names something else than what is used: after a kill between the two renames, or by
/// hand.
void compare_latest(const std::string& checkpoints_directory, const std::string& used) {
  const std::string path = checkpoints_directory + "/" + kLatestFile;
  std::error_code failure;
  if (std::filesystem::is_symlink(path, failure) && !std::filesystem::exists(path, failure)) {
    log::warning("{}: a link to nothing; ignored", path);
    return;
  }
  if (!std::filesystem::is_regular_file(path, failure)) return;
  std::string named = read_file(path);
  named.erase(named.find_last_not_of("\r\n ") + 1);
  if (named != used) log::warning("{}: names {}, the newest intact checkpoint is {}", path, named, used);
}

}  // namespace load_detail

Loaded load(const std::string& directory) {
  const Manifest manifest = read_manifest(directory);
  check_listing(directory, manifest);
  Loaded loaded;
  loaded.directory = directory;
  loaded.weights_only = manifest.num_optimizer_shards == 0;
  Snapshot& snapshot = loaded.snapshot;
  snapshot.step = manifest.step;
  snapshot.state = read_state(directory, manifest);
  snapshot.weights = load_detail::to_weights(
      directory + "/" + kModelFile, load_detail::read_verified(directory, manifest.file(kModelFile)));
  if (loaded.weights_only) return loaded;
  MomentAssembler assembler(snapshot.weights);
  for (int64_t rank = 0; rank < manifest.num_optimizer_shards; ++rank) {
    const ManifestFile& file = manifest.file(optimizer_name(rank, manifest.num_optimizer_shards));
    assembler.add(directory + "/" + file.name, load_detail::read_verified(directory, file),
                  {.step = manifest.step, .rank = rank, .world_size = manifest.num_optimizer_shards});
  }
  assembler.finish(directory, &snapshot.exp_avg, &snapshot.exp_avg_sq);
  return loaded;
}

std::optional<Loaded> load_newest(const std::string& checkpoints_directory, Leftovers leftovers,
                                  Wanted wanted) {
  if (leftovers == Leftovers::kRemove) remove_leftovers(checkpoints_directory);
  std::vector<std::string> skipped;
  std::vector<StepEntry> steps = list_steps(checkpoints_directory, &skipped);
  for (const std::string& stranger : skipped) log::warning("{}/{}; ignored", checkpoints_directory, stranger);
  const size_t num_strangers = skipped.size();
  for (auto entry = steps.rbegin(); entry != steps.rend(); ++entry) {
    const std::string directory = checkpoints_directory + "/" + entry->name;
    std::string problem;
    try {
      // Weights alone cannot be resumed from; the manifest says so before gigabytes are read.
      if (wanted == Wanted::kWeights || read_manifest(directory).num_optimizer_shards > 0) {
        Loaded loaded = load(directory);
        load_detail::compare_latest(checkpoints_directory, entry->name);
        loaded.skipped = std::move(skipped);
        return loaded;
      }
      problem = fmt::format("{}: holds weights only", directory);
    } catch (const Error& failure) {
      problem = failure.what();
    }
    log::warning("checkpoint {} skipped: {}", entry->name, problem);
    skipped.push_back(entry->name + ": " + problem);
  }
  if (!steps.empty() && wanted == Wanted::kWeights)
    throw DataError("{}: none of {} checkpoints is intact; the newest: {}", checkpoints_directory,
                    steps.size(), skipped[num_strangers]);
  if (!steps.empty())
    throw DataError(
        "{}: none of {} checkpoints can be resumed from; the newest: {}. Repair or remove them, or start "
        "under another "
        "run.name (run.init_from takes weights from an intact one)",
        checkpoints_directory, steps.size(), skipped[num_strangers]);
  return std::nullopt;
}

}  // namespace osdn::checkpoint
