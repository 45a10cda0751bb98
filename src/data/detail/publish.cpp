#include "data/detail/publish.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace osdn::data::detail {
namespace publish_detail {

constexpr const char* kManifest = "prepare.json";
constexpr const char* kJournal = "journal.json";

FileLock lock_folder(const std::string& path) {
  create_directories(path);
  std::string holder;
  std::optional<FileLock> lock = FileLock::try_acquire(path + "/.prepare.lock", &holder);
  if (!lock)
    throw UserError("{}: {} is preparing into this folder (wait for it, or choose another prepare.output)",
                    path, holder);
  return std::move(*lock);
}

/// "train-00012.h5", "valid-00000.h5"
bool is_shard_name(const std::string& name) {
  if (name.size() != 14 || (name.compare(0, 6, "train-") != 0 && name.compare(0, 6, "valid-") != 0))
    return false;
  return name.compare(11, 3, ".h5") == 0 && name.find_first_not_of("0123456789", 6) == 11;
}

std::vector<std::string> shard_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string(); is_shard_name(name)) names.push_back(name);
  return names;
}

void remove_all(const std::string& path) {
  std::error_code failure;
  std::filesystem::remove_all(path, failure);
  if (failure) throw EnvironmentError("{}: cannot remove: {}", path, failure.message());
}

}  // namespace publish_detail

OutputFolder::OutputFolder(const std::string& path)
    : path_(path), staging_(path + "/.prepare"), lock_(publish_detail::lock_folder(path)) {
  if (!std::filesystem::exists(staged(publish_detail::kManifest))) return;
  move_out();
  discard();
}

Json OutputFolder::published() const {
  const std::string manifest = final_path(publish_detail::kManifest);
  return std::filesystem::exists(manifest) ? read_json(manifest) : Json();
}

bool OutputFolder::holds_shards() const { return !publish_detail::shard_names(path_).empty(); }

void OutputFolder::begin() {
  discard();
  create_directories(staging_);
}

void OutputFolder::discard() { publish_detail::remove_all(staging_); }

Json OutputFolder::journal() const {
  const std::string path = staged(publish_detail::kJournal);
  if (!std::filesystem::exists(path)) return {};
  try {
    return read_json(path);
  } catch (const DataError&) {
    return {};  // damaged: there is nothing to continue
  }
}

void OutputFolder::write_journal(const Json& journal) const {
  atomic_write(staged(publish_detail::kJournal), json_text(journal, 2) + "\n");
}

std::string OutputFolder::staged(const std::string& name) const { return staging_ + "/" + name; }
std::string OutputFolder::final_path(const std::string& name) const { return path_ + "/" + name; }

void OutputFolder::publish(const Json& manifest) {
  atomic_write(staged(publish_detail::kManifest), json_text(manifest, 2) + "\n");
  move_out();
  discard();
}

/// May be entered again at any point: what has moved is no longer in the hidden folder.
void OutputFolder::move_out() {
  const Json manifest = read_json(staged(publish_detail::kManifest));
  const auto files = manifest.at("files").get<std::vector<std::string>>();
  // Without its manifest the old set is no set any more, so a reader never takes a mixture for one.
  publish_detail::remove_all(final_path(publish_detail::kManifest));
  sync_directory(path_);
  for (const std::string& name : publish_detail::shard_names(path_))
    if (std::find(files.begin(), files.end(), name) == files.end())
      publish_detail::remove_all(final_path(name));
  for (const std::string& name : files)
    if (std::filesystem::exists(staged(name))) durable_rename(staged(name), final_path(name));
  durable_rename(staged(publish_detail::kManifest), final_path(publish_detail::kManifest));
}

}  // namespace osdn::data::detail
