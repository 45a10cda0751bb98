#include "train/snapshot.h"

#include <filesystem>
#include <functional>
#include <unordered_map>

#include "base/error.h"
#include "tensor/torch.h"

namespace osdn::train {
namespace {

using ArenaTensor = std::function<at::Tensor(const std::string&)>;

/// One copy of the whole arena to the host, then a view per parameter.
std::vector<checkpoint::NamedTensor> named_copies(const optim::ParameterArena& arena,
                                                  const at::Tensor& range) {
  const at::Tensor host = range.is_cuda() ? range.to(at::kCPU) : range.clone();
  std::vector<checkpoint::NamedTensor> tensors;
  for (const optim::ParameterArena::Slot& slot : arena.slots())
    tensors.push_back({.name = slot.spec.name,
                       .value = host.narrow(0, slot.offset, slot.spec.num_elements()).view(slot.spec.shape)});
  return tensors;
}

void copy_into(const std::string& directory, const char* what,
               const std::vector<checkpoint::NamedTensor>& tensors, const optim::ParameterArena& arena,
               const ArenaTensor& target) {
  std::unordered_map<std::string, at::Tensor> by_name;
  for (const checkpoint::NamedTensor& tensor : tensors) by_name.emplace(tensor.name, tensor.value);
  for (const optim::ParameterArena::Slot& slot : arena.slots()) {
    const auto found = by_name.find(slot.spec.name);
    if (found == by_name.end())
      throw DataError("{}: {} of {} is missing; the checkpoint belongs to another model", directory, what,
                      slot.spec.name);
    if (found->second.sizes() != at::IntArrayRef(slot.spec.shape))
      throw DataError("{}: {} of {}: expected shape {}, got {}; the checkpoint belongs to another model",
                      directory, what, slot.spec.name, c10::str(at::IntArrayRef(slot.spec.shape)),
                      c10::str(found->second.sizes()));
    target(slot.spec.name).copy_(found->second);
    by_name.erase(found);
  }
  if (!by_name.empty())
    throw DataError("{}: {} of {} is unknown to this model; the checkpoint belongs to another one", directory,
                    what, by_name.begin()->first);
}

}  // namespace

checkpoint::Loaded open_checkpoint(const std::string& path) {
  if (std::filesystem::exists(path + "/manifest.json")) return checkpoint::load(path);
  const bool is_run = std::filesystem::is_directory(path + "/checkpoints");
  std::optional<checkpoint::Loaded> newest = checkpoint::load_newest(
      is_run ? path + "/checkpoints" : path, checkpoint::Leftovers::kKeep, checkpoint::Wanted::kWeights);
  if (!newest)
    throw UserError(
        "{}: expected a run directory, or a checkpoint (a folder step_N with manifest.json); found none "
        "there",
        path);
  return std::move(*newest);
}

checkpoint::Snapshot take_snapshot(const optim::ParameterArena& arena, const TrainState& state,
                                   const Json& about) {
  checkpoint::Snapshot snapshot;
  snapshot.step = state.step;
  snapshot.weights = named_copies(arena, arena.masters());
  snapshot.exp_avg = named_copies(arena, arena.exp_avgs());
  snapshot.exp_avg_sq = named_copies(arena, arena.exp_avg_sqs());
  snapshot.state = state.to_json();
  snapshot.state.update(about);
  return snapshot;
}

void restore_weights(const checkpoint::Loaded& loaded, optim::ParameterArena& arena) {
  copy_into(loaded.directory, "the weight", loaded.snapshot.weights, arena,
            [&](const std::string& name) { return arena.master(name); });
  arena.refresh_compute_copy();
}

void restore(const checkpoint::Loaded& loaded, optim::ParameterArena& arena) {
  restore_weights(loaded, arena);
  copy_into(loaded.directory, "the first moment", loaded.snapshot.exp_avg, arena,
            [&](const std::string& name) { return arena.exp_avg(name); });
  copy_into(loaded.directory, "the second moment", loaded.snapshot.exp_avg_sq, arena,
            [&](const std::string& name) { return arena.exp_avg_sq(name); });
}

}  // namespace osdn::train
