#include "checkpoint/retention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/verify.h"

namespace osdn::checkpoint {
namespace retention_detail {

enum class Kind { kBroken, kWeights, kFull };

/// By manifest, names and sizes alone: content is read only where it decides what may go.
Kind classify(const std::string& directory) {
  try {
    const Manifest manifest = read_manifest(directory);
    check_listing(directory, manifest);
    return manifest.num_optimizer_shards == 0 ? Kind::kWeights : Kind::kFull;
  } catch (const Error&) {
    return Kind::kBroken;
  }
}

/// Moments that a weights-only manifest no longer names, and what a kill left of writing that manifest.
void remove_moments(const std::string& directory) {
  for (const std::string& name : list_names(directory))
    if (is_optimizer_name(name) || name.starts_with(std::string(kManifestFile) + ".tmp-"))
      remove_tree(directory + "/" + name);
}

}  // namespace retention_detail

Retention::Retention(std::string directory, int64_t keep_last, int64_t keep_every_steps)
    : directory_(std::move(directory)), keep_last_(keep_last), keep_every_steps_(keep_every_steps) {}

bool Retention::is_intact(const std::string& name) {
  if (verified_.count(name)) return true;
  const Verdict verdict = verify(directory_ + "/" + name);
  if (verdict.intact)
    verified_.insert(name);
  else
    log::warning("checkpoint {} does not count as kept: {}", name, verdict.problem);
  return verdict.intact;
}

void Retention::apply(const std::string& newest) {
  using retention_detail::Kind;
  verified_.insert(newest);
  if (keep_last_ <= 0) return;
  std::vector<StepEntry> full;
  for (const StepEntry& entry : list_steps(directory_)) {
    const std::string path = directory_ + "/" + entry.name;
    const Kind kind = retention_detail::classify(path);
    if (kind == Kind::kWeights) retention_detail::remove_moments(path);
    if (kind == Kind::kFull) full.push_back(entry);
  }
  // Nothing can go: then nothing needs to be read, as when a run of gigabytes resumes.
  if (static_cast<int64_t>(full.size()) <= keep_last_) return;
  int64_t num_kept = 0;
  for (auto entry = full.rbegin(); entry != full.rend(); ++entry) {
    if (entry->name == newest || num_kept < keep_last_) {
      num_kept += is_intact(entry->name) ? 1 : 0;
      continue;
    }
    verified_.erase(entry->name);
    if (keep_every_steps_ > 0 && entry->step % keep_every_steps_ == 0)
      reduce_to_weights(directory_ + "/" + entry->name);
    else
      remove_checkpoint(directory_, entry->name, entry->step);
  }
}

int64_t num_checkpoints(const std::string& checkpoints_directory) {
  int64_t count = 0;
  for (const StepEntry& entry : list_steps(checkpoints_directory))
    if (retention_detail::classify(checkpoints_directory + "/" + entry.name) == retention_detail::Kind::kFull)
      ++count;
  return count;
}

void reduce_to_weights(const std::string& directory) {
  Manifest manifest = read_manifest(directory);
  manifest.num_optimizer_shards = 0;
  manifest.files.erase(std::remove_if(manifest.files.begin(), manifest.files.end(),
                                      [](const ManifestFile& file) { return is_optimizer_name(file.name); }),
                       manifest.files.end());
  atomic_write(directory + "/" + kManifestFile, to_text(manifest));
  retention_detail::remove_moments(directory);
}

void remove_checkpoint(const std::string& checkpoints_directory, const std::string& name, int64_t step) {
  const std::string moved = checkpoints_directory + "/" + temporary_name(step);
  remove_tree(moved);
  durable_rename(checkpoints_directory + "/" + name, moved);
  remove_tree(moved);
}

}  // namespace osdn::checkpoint
