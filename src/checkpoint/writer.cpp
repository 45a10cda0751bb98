#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/optimizer_shard.h"
#include "checkpoint/publisher.h"
#include "checkpoint/safetensors.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace writer_detail {

/// Everything that goes into the files, taken from the snapshot without copying a tensor.
struct Content {
  int64_t step = 0;
  int64_t rank = 0;
  int64_t num_shards = 1;
  TensorList weights;
  std::map<std::string, std::string> metadata;
  std::vector<MomentSlice> slices;
  std::string state;
  ShardPlace place() const { return {.step = step, .rank = rank, .world_size = num_shards}; }
  bool weights_only() const { return slices.empty(); }
};

void check_tensor(const NamedTensor& tensor) {
  OSDN_ASSERT(tensor.value.defined() && tensor.value.device().is_cpu() && tensor.value.is_contiguous() &&
                  tensor.value.scalar_type() == at::kFloat,
              "checkpoint: {} must be a contiguous float32 CPU tensor", tensor.name);
}

Content to_content(const Snapshot& snapshot, int64_t rank) {
  const bool sliced = !snapshot.slices.empty();
  const bool weights_only = snapshot.exp_avg.empty() && snapshot.exp_avg_sq.empty();
  OSDN_ASSERT(!sliced || weights_only, "checkpoint: moments both whole and in slices");
  OSDN_ASSERT(weights_only || (snapshot.exp_avg.size() == snapshot.weights.size() &&
                               snapshot.exp_avg_sq.size() == snapshot.weights.size()),
              "checkpoint: {} weights, {} and {} moments", snapshot.weights.size(), snapshot.exp_avg.size(),
              snapshot.exp_avg_sq.size());
  OSDN_ASSERT(snapshot.step >= 0, "checkpoint of step {}", snapshot.step);
  Content content;
  content.step = snapshot.step;
  content.rank = rank;
  content.num_shards = snapshot.num_shards;
  content.metadata = {{"format", "pt"}, {"step", std::to_string(snapshot.step)}};
  std::map<std::string, at::Tensor> second;
  for (const NamedTensor& tensor : snapshot.exp_avg_sq) second[tensor.name] = tensor.value;
  std::map<std::string, at::Tensor> first;
  for (const NamedTensor& tensor : snapshot.exp_avg) first[tensor.name] = tensor.value;
  for (const NamedTensor& weight : snapshot.weights) {
    if (weights_only) {
      check_tensor(weight);
      content.weights.emplace_back(weight.name, weight.value);
      continue;
    }
    const NamedTensor exp_avg = {weight.name, first[weight.name]};
    const NamedTensor exp_avg_sq = {weight.name, second[weight.name]};
    for (const NamedTensor* tensor : {&weight, &exp_avg, &exp_avg_sq}) check_tensor(*tensor);
    OSDN_ASSERT(
        exp_avg.value.sizes() == weight.value.sizes() && exp_avg_sq.value.sizes() == weight.value.sizes(),
        "checkpoint: {}: moments of another shape", weight.name);
    content.weights.emplace_back(weight.name, weight.value);
    content.slices.push_back({.name = weight.name,
                              .begin = 0,
                              .end = weight.value.numel(),
                              .exp_avg = exp_avg.value,
                              .exp_avg_sq = exp_avg_sq.value});
  }
  if (sliced) content.slices = snapshot.slices;
  if (rank != 0) return content;
  Json state = Json::object({{"step", snapshot.step}});
  for (const auto& [key, value] : snapshot.state.items()) state[key] = value;
  OSDN_ASSERT(state["step"] == snapshot.step, "checkpoint of step {}: its state is of another",
              snapshot.step);
  // Paths in the state may hold any bytes; a replacement character there must not cost the checkpoint.
  content.state = json_text(state, 2) + "\n";
  return content;
}

/// The files that the publisher writes; each keeps the content alive.
PendingCheckpoint to_pending(const std::shared_ptr<const Content>& content) {
  PendingCheckpoint pending{.step = content->step,
                            .num_optimizer_shards = content->weights_only() ? 0 : content->num_shards,
                            .files = {}};
  if (content->rank == 0) {
    pending.files.push_back({.name = kModelFile,
                             .size_bytes = safetensors_bytes(content->weights, content->metadata),
                             .write = [content](const std::string& path) {
                               return write_safetensors(path, content->weights, content->metadata);
                             }});
    pending.files.push_back({.name = kStateFile,
                             .size_bytes = content->state.size(),
                             .write = [content](const std::string& path) {
                               File file = File::create(path);
                               file.write(content->state);
                               file.sync();
                               return digest(content->state);
                             }});
  }
  if (content->weights_only()) return pending;
  const uint64_t shard_bytes = optimizer_shard_bytes(content->place(), content->slices);
  pending.files.push_back({.name = optimizer_name(content->rank, content->num_shards),
                           .size_bytes = shard_bytes,
                           .write = [content](const std::string& path) {
                             return write_optimizer_shard(path, content->place(), content->slices);
                           }});
  pending.bytes_of_others = shard_bytes * static_cast<uint64_t>(content->num_shards - 1);
  return pending;
}

}  // namespace writer_detail

Writer::Writer(std::string checkpoints_directory, config::Checkpoint options, Team team)
    : team_(std::move(team)),
      publisher_(std::make_unique<Publisher>(std::move(checkpoints_directory), options, team_)) {}

Writer::~Writer() = default;

void Writer::adopt(const std::string& name) { publisher_->adopt(name); }

void Writer::save(const Snapshot& snapshot) {
  OSDN_ASSERT(snapshot.num_shards == team_.world_size, "checkpoint of {} shards by {} ranks",
              snapshot.num_shards, team_.world_size);
  publisher_->save(writer_detail::to_pending(
      std::make_shared<const writer_detail::Content>(writer_detail::to_content(snapshot, team_.rank))));
}

void Writer::check() { publisher_->check(); }

void Writer::wait() { publisher_->wait(); }

int64_t Writer::newest_step() const { return publisher_->newest_step(); }

uint64_t checkpoint_bytes(int64_t num_parameters) {
  return static_cast<uint64_t>(num_parameters) * 3 * sizeof(float) + (uint64_t{1} << 20);
}

}  // namespace osdn::checkpoint
