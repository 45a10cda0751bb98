#include "checkpoint/manifest.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/layout.h"

namespace osdn::checkpoint {
namespace manifest_detail {

constexpr const char* kFormat = "osdn checkpoint";
constexpr int64_t kVersion = 1;

/// Files of a checkpoint with this many optimizer shards, in manifest order.
std::vector<std::string> expected_names(int64_t num_optimizer_shards) {
  std::vector<std::string> names = {kModelFile, kStateFile};
  for (int64_t rank = 0; rank < num_optimizer_shards; ++rank)
    names.push_back(optimizer_name(rank, num_optimizer_shards));
  return names;
}

Manifest parse(const std::string& path, const std::string& text) {
  const Json json = Json::parse(text);
  if (json.at("format").get<std::string>() != kFormat)
    throw DataError("{}: format is \"{}\", expected \"{}\"", path, json.at("format").get<std::string>(),
                    kFormat);
  if (const int64_t version = json_integer(json.at("version")); version != kVersion)
    throw DataError("{}: format version {}, this program reads version {}", path, version, kVersion);
  Manifest manifest;
  manifest.step = json_integer(json.at("step"));
  manifest.num_optimizer_shards = json_integer(json.at("optimizer_shards"));
  for (const Json& file : json.at("files"))
    manifest.files.push_back({file.at("name").get<std::string>(),
                              static_cast<uint64_t>(json_integer(file.at("bytes"))),
                              file.at("xxh3_128").get<std::string>()});
  return manifest;
}

}  // namespace manifest_detail

const ManifestFile& Manifest::file(const std::string& name) const {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const ManifestFile& candidate) { return candidate.name == name; });
  OSDN_ASSERT(found != files.end(), "manifest of step {} without {}", step, name);
  return *found;
}

std::string to_text(const Manifest& manifest) {
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files)
    files.push_back(
        Json::object({{"name", file.name}, {"bytes", file.size_bytes}, {"xxh3_128", file.digest}}));
  Json json = Json::object({{"format", manifest_detail::kFormat},
                            {"version", manifest_detail::kVersion},
                            {"step", manifest.step},
                            {"optimizer_shards", manifest.num_optimizer_shards},
                            {"files", std::move(files)}});
  json["digest"] = digest(json.dump()).hex();
  return json.dump(2) + "\n";
}

Manifest read_manifest(const std::string& directory) {
  const std::string path = directory + "/" + kManifestFile;
  std::error_code failure;
  if (!std::filesystem::is_directory(directory, failure)) throw DataError("{}: no such directory", directory);
  if (!std::filesystem::exists(path, failure))
    throw DataError("{}: missing; the checkpoint is incomplete", path);
  const std::string text = read_file(path);
  Manifest manifest;
  try {
    manifest = manifest_detail::parse(path, text);
  } catch (const Json::exception& problem) {
    throw DataError("{}: damaged: {}", path, problem.what());
  }
  if (manifest.num_optimizer_shards < 0 || manifest.num_optimizer_shards > int64_t(manifest.files.size()))
    throw DataError("{}: {} optimizer shards cannot be", path, manifest.num_optimizer_shards);
  std::vector<std::string> names;
  for (const ManifestFile& file : manifest.files) names.push_back(file.name);
  // Everything that was parsed is written out again: any other byte, the digest's own included, shows as a
  // difference.
  if (to_text(manifest) != text || names != manifest_detail::expected_names(manifest.num_optimizer_shards))
    throw DataError("{}: damaged: its content does not match its own digest", path);
  const auto named = parse_step_name(base_name(directory));
  if (named && *named != manifest.step)
    throw DataError("{}: is of step {}, the directory's name says {}", path, manifest.step, *named);
  return manifest;
}

void check_listing(const std::string& directory, const Manifest& manifest) {
  std::vector<std::string> names;
  for (const ManifestFile& file : manifest.files) {
    const std::string path = directory + "/" + file.name;
    std::error_code failure;
    if (!std::filesystem::exists(path, failure))
      throw DataError("{}: missing; the checkpoint is incomplete", path);
    const uint64_t size_bytes =
        std::filesystem::is_regular_file(path, failure) ? std::filesystem::file_size(path, failure) : 0;
    if (failure || size_bytes != file.size_bytes)
      throw DataError("{}: {} bytes, expected {}: {}", path, size_bytes, file.size_bytes,
                      size_bytes < file.size_bytes ? "truncated" : "something was appended");
    names.push_back(file.name);
  }
  for (const std::string& name : list_names(directory)) {
    // A kill during the reduction to weights only leaves the moments, or a staged manifest, beside a valid
    // manifest.
    const bool leftover = name.starts_with(std::string(kManifestFile) + ".tmp-") ||
                          (manifest.num_optimizer_shards == 0 && is_optimizer_name(name));
    if (name != kManifestFile && !leftover && std::find(names.begin(), names.end(), name) == names.end())
      throw DataError("{}/{}: not part of the checkpoint (manifest.json does not name it)", directory, name);
  }
}

void check_digest(const std::string& directory, const ManifestFile& file, const std::string& found) {
  if (found != file.digest)
    throw DataError("{}/{}: altered: its digest is {}, the manifest says {}", directory, file.name, found,
                    file.digest);
}

Json read_state(const std::string& directory, const Manifest& manifest) {
  const std::string path = directory + "/" + kStateFile;
  const std::string text = read_file(path);
  check_digest(directory, manifest.file(kStateFile), digest(text).hex());
  try {
    Json state = Json::parse(text);
    if (const int64_t step = json_integer(state.at("step")); step != manifest.step)
      throw DataError("{}: is of step {}, manifest.json of step {}", path, step, manifest.step);
    return state;
  } catch (const Json::exception& failure) {
    throw DataError("{}: damaged: {}", path, failure.what());
  }
}

}  // namespace osdn::checkpoint
