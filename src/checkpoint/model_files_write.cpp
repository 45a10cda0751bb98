#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_files.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace model_files_write_detail {

/// In the given order, a new shard where the next tensor would not fit any more.
std::vector<TensorList> cut(TensorList tensors, uint64_t max_shard_bytes) {
  std::vector<TensorList> shards(1);
  uint64_t bytes = 0;
  for (auto& tensor : tensors) {
    const uint64_t size = tensor.second.nbytes();
    if (!shards.back().empty() && bytes + size > max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += size;
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

}  // namespace model_files_write_detail

std::vector<std::string> write_model_files(const std::string& directory, TensorList tensors,
                                           uint64_t max_shard_bytes) {
  // What readers of the "pt" format look for.
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::vector<TensorList> shards =
      model_files_write_detail::cut(std::move(tensors), std::max<uint64_t>(max_shard_bytes, 1));
  if (shards.size() == 1) {
    write_safetensors(directory + "/" + kModelFile, shards[0], metadata);
    return {kModelFile};
  }
  std::vector<std::string> names;
  uint64_t total_bytes = 0;
  std::map<std::string, std::string> file_of;
  for (size_t i = 0; i < shards.size(); ++i) {
    names.push_back(fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, shards.size()));
    write_safetensors(directory + "/" + names.back(), shards[i], metadata);
    for (const auto& [name, tensor] : shards[i]) {
      total_bytes += tensor.nbytes();
      file_of.emplace(name, names.back());
    }
  }
  Json weight_map = Json::object();
  for (const auto& [name, file] : file_of) weight_map[name] = file;
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  atomic_write(directory + "/" + kModelIndexFile, index.dump(2) + "\n");
  names.push_back(kModelIndexFile);
  return names;
}

}  // namespace osdn::checkpoint
