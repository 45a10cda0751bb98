#include "checkpoint/optimizer_shard.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace optimizer_shard_detail {

constexpr const char* kShardFormat = "osdn optimizer 1";
const std::string kFirst = "exp_avg.";
const std::string kSecond = "exp_avg_sq.";

struct Content {
  TensorList tensors;
  std::map<std::string, std::string> metadata;
};

Content to_content(const ShardPlace& place, const std::vector<MomentSlice>& slices) {
  Content content;
  Json ranges = Json::object();
  for (const MomentSlice& slice : slices) {
    OSDN_ASSERT(slice.exp_avg.numel() == slice.end - slice.begin &&
                    slice.exp_avg_sq.numel() == slice.end - slice.begin,
                "{}: moments do not have the slice's length {}", slice.name, slice.end - slice.begin);
    OSDN_ASSERT(slice.exp_avg.scalar_type() == at::kFloat && slice.exp_avg_sq.scalar_type() == at::kFloat,
                "{}: moments must be float32", slice.name);
    // A further slice of a tensor is told from the first by where it begins; no tensor's name has an @.
    const std::string key =
        ranges.contains(slice.name) ? fmt::format("{}@{}", slice.name, slice.begin) : slice.name;
    content.tensors.emplace_back(kFirst + key, slice.exp_avg);
    content.tensors.emplace_back(kSecond + key, slice.exp_avg_sq);
    ranges[key] = Json::array({slice.begin, slice.end});
  }
  content.metadata = {{"format", kShardFormat},
                      {"step", std::to_string(place.step)},
                      {"rank", std::to_string(place.rank)},
                      {"world_size", std::to_string(place.world_size)},
                      {"slices", ranges.dump()}};
  return content;
}

void expect_metadata(const std::string& path, const SafetensorsFile& file, const char* key,
                     const std::string& expected) {
  const auto found = file.metadata.find(key);
  const std::string value = found == file.metadata.end() ? "nothing" : "\"" + found->second + "\"";
  if (value != "\"" + expected + "\"")
    throw DataError("{}: metadata {}: expected \"{}\", got {}", path, key, expected, value);
}

/// The slices' ranges by tensor name.
std::map<std::string, std::pair<int64_t, int64_t>> parse_ranges(const std::string& path,
                                                                const SafetensorsFile& file) {
  std::map<std::string, std::pair<int64_t, int64_t>> ranges;
  const auto text = file.metadata.find("slices");
  if (text == file.metadata.end()) throw DataError("{}: metadata slices: missing", path);
  try {
    const Json json = Json::parse(text->second);
    for (const auto& [name, range] : json.items())
      ranges[name] = {json_integer(range.at(0)), json_integer(range.at(1))};
  } catch (const Json::exception& failure) {
    throw DataError("{}: metadata slices: {}", path, failure.what());
  }
  return ranges;
}

/// Copies a slice into its tensor, or takes it over when it is the whole tensor.
void place_slice(const at::Tensor& slice, const at::Tensor& weight, int64_t begin, at::Tensor* moment) {
  if (slice.numel() == weight.numel()) {
    *moment = slice.view(weight.sizes());
    return;
  }
  if (!moment->defined()) *moment = at::empty(weight.sizes(), at::TensorOptions(at::kFloat));
  moment->view(-1).narrow(0, begin, slice.numel()).copy_(slice.view(-1));
}

}  // namespace optimizer_shard_detail

Digest128 write_optimizer_shard(const std::string& path, const ShardPlace& place,
                                const std::vector<MomentSlice>& slices) {
  const auto content = optimizer_shard_detail::to_content(place, slices);
  return write_safetensors(path, content.tensors, content.metadata);
}

uint64_t optimizer_shard_bytes(const ShardPlace& place, const std::vector<MomentSlice>& slices) {
  const auto content = optimizer_shard_detail::to_content(place, slices);
  return safetensors_bytes(content.tensors, content.metadata);
}

MomentAssembler::MomentAssembler(const std::vector<NamedTensor>& weights)
    : weights_(weights), moments_(weights.size()) {
  for (size_t i = 0; i < weights.size(); ++i) index_[weights[i].name] = i;
}

void MomentAssembler::add(const std::string& path, const SafetensorsFile& file, const ShardPlace& place) {
  namespace detail = optimizer_shard_detail;
  detail::expect_metadata(path, file, "format", detail::kShardFormat);
  detail::expect_metadata(path, file, "step", std::to_string(place.step));
  detail::expect_metadata(path, file, "rank", std::to_string(place.rank));
  detail::expect_metadata(path, file, "world_size", std::to_string(place.world_size));
  const auto ranges = detail::parse_ranges(path, file);
  std::map<std::string, at::Tensor> tensors(file.tensors.begin(), file.tensors.end());
  if (tensors.size() != 2 * ranges.size())
    throw DataError("{}: {} tensors for {} slices, expected two each", path, tensors.size(), ranges.size());
  for (const auto& [slice, range] : ranges) {
    const std::string name = slice.substr(0, slice.find('@'));
    const auto [begin, end] = range;
    const auto known = index_.find(name);
    if (known == index_.end())
      throw DataError("{}: moments of {}, which {} does not hold", path, name, "model.safetensors");
    const at::Tensor& weight = weights_[known->second].value;  // any shape
    if (begin < 0 || begin > end || end > weight.numel())
      throw DataError("{}: slice [{}, {}) of {} with {} elements", path, begin, end, name, weight.numel());
    for (const std::string& key : {detail::kFirst + slice, detail::kSecond + slice}) {
      const auto tensor = tensors.find(key);
      if (tensor == tensors.end()) throw DataError("{}: tensor {} is missing", path, key);
      const at::Tensor& value = tensor->second;
      if (value.scalar_type() != at::kFloat)
        throw DataError("{}: tensor {}: expected dtype F32, got {}", path, key,
                        c10::toString(value.scalar_type()));
      const bool whole = value.numel() == weight.numel() && value.sizes() == weight.sizes();
      if (value.numel() != end - begin || (!whole && value.dim() != 1))
        throw DataError("{}: tensor {}: expected {} elements, got shape {}", path, key, end - begin,
                        Json(value.sizes().vec()).dump());
    }
    Moments& moments = moments_[known->second];
    detail::place_slice(tensors[detail::kFirst + slice], weight, begin, &moments.exp_avg);
    detail::place_slice(tensors[detail::kSecond + slice], weight, begin, &moments.exp_avg_sq);
    moments.covered.emplace_back(begin, end);
  }
}

void MomentAssembler::finish(const std::string& directory, std::vector<NamedTensor>* exp_avg,
                             std::vector<NamedTensor>* exp_avg_sq) {
  for (size_t i = 0; i < weights_.size(); ++i) {
    Moments& moments = moments_[i];
    std::sort(moments.covered.begin(), moments.covered.end());
    int64_t next = 0;
    for (const auto& [begin, end] : moments.covered) {
      if (begin != next)
        throw DataError("{}: moments of {}: elements {} to {} {}", directory, weights_[i].name,
                        std::min(begin, next), std::max(begin, next),
                        begin < next ? "are in two optimizer shards" : "are in no optimizer shard");
      next = end;
    }
    if (next != weights_[i].value.numel() || !moments.exp_avg.defined())
      throw DataError("{}: moments of {}: elements from {} on are in no optimizer shard", directory,
                      weights_[i].name, next);
    exp_avg->push_back({weights_[i].name, std::move(moments.exp_avg)});
    exp_avg_sq->push_back({weights_[i].name, std::move(moments.exp_avg_sq)});
  }
}

}  // namespace osdn::checkpoint
