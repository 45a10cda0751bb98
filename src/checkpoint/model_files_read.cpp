#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "checkpoint/detail/strict_json.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_files.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace model_files_read_detail {

namespace fs = std::filesystem;

constexpr int kMaxIndexDepth = 3;
constexpr uint64_t kMaxIndexBytes = 100'000'000;

struct Index {
  std::string path;
  std::map<std::string, std::string> file_of;  // by tensor
  std::set<std::string> files;
  std::optional<uint64_t> total_bytes;
};

/// A file beside the index and nothing else: no directory part, no absolute path.
bool is_plain_shard_name(const std::string& name) {
  const std::string extension = ".safetensors";
  return name.size() > extension.size() && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos && name[0] != '.' &&
         name.compare(name.size() - extension.size(), extension.size(), extension) == 0;
}

/// Sum of the tensors' bytes, when the index states it; some writers give it as a floating-point number.
std::optional<uint64_t> total_bytes(const std::string& path, const StrictJson& json) {
  const auto metadata = json.find("metadata");
  if (metadata == json.end()) return std::nullopt;
  if (!metadata->is_object()) throw DataError("{}: metadata: expected an object", path);
  const auto total = metadata->find("total_size");
  if (total == metadata->end()) return std::nullopt;
  if (total->is_number_unsigned()) return total->get<uint64_t>();
  constexpr double kExactlyIntegral = 9007199254740992.0;  // 2^53
  const double value = total->is_number_float() ? total->get<double>() : -1;
  if (!(value >= 0 && value < kExactlyIntegral) || value != static_cast<double>(static_cast<uint64_t>(value)))
    throw DataError("{}: metadata.total_size: expected a whole number of bytes, got {}", path, total->dump());
  return static_cast<uint64_t>(value);
}

Index read_index(const std::string& path) {
  if (fs::file_size(path) > kMaxIndexBytes)
    throw DataError("{}: {} bytes are above the limit of {} for an index", path, fs::file_size(path),
                    kMaxIndexBytes);
  const StrictJson json = parse_strict_json(path, read_file(path), kMaxIndexDepth);
  Index index;
  index.path = path;
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty())
    throw DataError("{}: weight_map: expected an object of tensor and file names", path);
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      throw DataError("{}: weight_map: {}: expected a file name, got {}", path, tensor, file.type_name());
    const std::string name = file.get<std::string>();
    if (!is_plain_shard_name(name))
      throw DataError(
          "{}: weight_map: {}: \"{}\" is not the name of a .safetensors file in the same directory", path,
          tensor, name);
    index.file_of.emplace(tensor, name);
    index.files.insert(name);
  }
  index.total_bytes = total_bytes(path, json);
  return index;
}

void append_file(const std::string& directory, const std::string& name, ModelFiles* content) {
  Digest128 digest;
  SafetensorsFile file = read_safetensors(directory + "/" + name, &digest);
  content->digests.emplace_back(name, digest.hex());
  for (auto& tensor : file.tensors) content->tensors.push_back(std::move(tensor));
}

/// The shard holds the tensors that the index places there, and no other.
void check_shard(const Index& index, const std::string& shard, const TensorList& tensors, size_t first) {
  std::set<std::string> missing;
  for (const auto& [tensor, file] : index.file_of)
    if (file == shard) missing.insert(tensor);
  for (size_t i = first; i < tensors.size(); ++i) {
    const std::string& name = tensors[i].first;
    if (missing.erase(name) > 0) continue;
    const auto placed = index.file_of.find(name);
    if (placed == index.file_of.end())
      throw DataError("{}: {} holds tensor {}, which the index does not know", index.path, shard, name);
    throw DataError("{}: tensor {} lies in {}, but the index says {}", index.path, name, shard,
                    placed->second);
  }
  if (!missing.empty())
    throw DataError("{}: tensor {} should lie in {}, but is not there", index.path, *missing.begin(), shard);
}

ModelFiles read_shards(const std::string& directory, const std::string& index_path) {
  const Index index = read_index(index_path);
  ModelFiles content;
  // All of them before gigabytes are read.
  for (const std::string& shard : index.files)
    if (!fs::is_regular_file(directory + "/" + shard)) {
      const auto tensor = std::find_if(index.file_of.begin(), index.file_of.end(),
                                       [&](const auto& placed) { return placed.second == shard; });
      throw DataError("{}: shard {} is missing; tensor {} and others should lie there", index_path, shard,
                      tensor->first);
    }
  for (const std::string& shard : index.files) {
    const size_t first = content.tensors.size();
    append_file(directory, shard, &content);
    check_shard(index, shard, content.tensors, first);
  }
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : content.tensors) bytes += tensor.nbytes();
  if (index.total_bytes && *index.total_bytes != bytes)
    throw DataError("{}: metadata.total_size is {}, but the tensors of the shards have {} bytes", index_path,
                    *index.total_bytes, bytes);
  return content;
}

[[noreturn]] void refuse_without_weights(const std::string& directory) {
  for (const std::string& name : list_names(directory))
    if (name.rfind("pytorch_model", 0) == 0)
      throw UserError(
          "{}: holds {}, expected {} or {}; convert it first (save_pretrained with safe_serialization=True)",
          directory, name, kModelFile, kModelIndexFile);
  throw UserError("{}: holds neither {} nor {}", directory, kModelFile, kModelIndexFile);
}

}  // namespace model_files_read_detail

ModelFiles read_model_files(const std::string& directory) {
  namespace fs = std::filesystem;
  const std::string index_path = directory + "/" + kModelIndexFile;
  const bool has_single = fs::is_regular_file(directory + "/" + kModelFile);
  const bool has_index = fs::is_regular_file(index_path);
  if (has_single && has_index)
    throw DataError("{}: holds both {} and {}; remove the one that is out of date", directory, kModelFile,
                    kModelIndexFile);
  ModelFiles content;
  if (has_index)
    content = model_files_read_detail::read_shards(directory, index_path);
  else if (has_single)
    model_files_read_detail::append_file(directory, kModelFile, &content);
  else
    model_files_read_detail::refuse_without_weights(directory);
  std::sort(content.tensors.begin(), content.tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return content;
}

}  // namespace osdn::checkpoint
