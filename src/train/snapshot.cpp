#include "train/snapshot.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "base/error.h"
#include "tensor/torch.h"

namespace osdn::train {
namespace {

using Slot = optim::ParameterArena::Slot;
using TensorsByName = std::unordered_map<std::string, at::Tensor>;

at::Tensor host_copy(const at::Tensor& range) { return range.is_cuda() ? range.to(at::kCPU) : range.clone(); }

/// A view per parameter of what lies in arena order on the host.
std::vector<checkpoint::NamedTensor> named_views(const optim::ParameterArena& arena, const at::Tensor& host) {
  std::vector<checkpoint::NamedTensor> tensors;
  for (const Slot& slot : arena.slots())
    tensors.push_back({.name = slot.spec.name,
                       .value = host.narrow(0, slot.offset, slot.spec.num_elements()).view(slot.spec.shape)});
  return tensors;
}

/// What a range and a parameter have in common.
struct Overlap {
  int64_t in_tensor = 0;   // first element, counted within the parameter
  int64_t in_moments = 0;  // and within the moments that this rank keeps
  int64_t size = 0;
};

Overlap overlap_of(const Slot& slot, const optim::ParameterArena::OwnedRange& range) {
  const int64_t begin = std::max(slot.offset, range.begin);
  const int64_t end = std::min(slot.offset + slot.spec.num_elements(), range.end);
  return {.in_tensor = begin - slot.offset,
          .in_moments = range.moments + begin - range.begin,
          .size = std::max<int64_t>(0, end - begin)};
}

std::vector<checkpoint::MomentSlice> moment_slices(const optim::ParameterArena& arena, int64_t rank) {
  const at::Tensor first = host_copy(arena.exp_avgs());
  const at::Tensor second = host_copy(arena.exp_avg_sqs());
  std::vector<checkpoint::MomentSlice> slices;
  for (const Slot& slot : arena.slots()) {
    for (const optim::ParameterArena::OwnedRange& range : arena.owned()) {
      const Overlap overlap = overlap_of(slot, range);
      if (overlap.size == 0 || (range.common && rank != 0)) continue;
      const bool whole = overlap.size == slot.spec.num_elements();
      const std::vector<int64_t> shape = whole ? slot.spec.shape : std::vector<int64_t>{overlap.size};
      slices.push_back({.name = slot.spec.name,
                        .begin = overlap.in_tensor,
                        .end = overlap.in_tensor + overlap.size,
                        .exp_avg = first.narrow(0, overlap.in_moments, overlap.size).view(shape),
                        .exp_avg_sq = second.narrow(0, overlap.in_moments, overlap.size).view(shape)});
    }
  }
  return slices;
}

/// The loaded tensors by name; DataError unless they are those of the arena.
TensorsByName checked(const std::string& directory, const char* what,
                      const std::vector<checkpoint::NamedTensor>& tensors,
                      const optim::ParameterArena& arena) {
  TensorsByName by_name;
  for (const checkpoint::NamedTensor& tensor : tensors) by_name.emplace(tensor.name, tensor.value);
  for (const Slot& slot : arena.slots()) {
    const auto found = by_name.find(slot.spec.name);
    if (found == by_name.end())
      throw DataError("{}: {} of {} is missing; the checkpoint belongs to another model", directory, what,
                      slot.spec.name);
    if (found->second.sizes() != at::IntArrayRef(slot.spec.shape))
      throw DataError("{}: {} of {}: expected shape {}, got {}; the checkpoint belongs to another model",
                      directory, what, slot.spec.name, c10::str(at::IntArrayRef(slot.spec.shape)),
                      c10::str(found->second.sizes()));
  }
  if (by_name.size() == arena.slots().size()) return by_name;
  for (const Slot& slot : arena.slots()) by_name.erase(slot.spec.name);
  throw DataError("{}: {} of {} is unknown to this model; the checkpoint belongs to another one", directory,
                  what, by_name.begin()->first);
}

/// From rank 0, which has them all, to the ranks that keep them.
void spread_moments(const TensorsByName& moments, const at::Tensor& target,
                    const optim::ParameterArena& arena, dist::Communicator& communicator, const char* what) {
  for (const Slot& slot : arena.slots()) {
    at::Tensor whole = at::empty({slot.spec.num_elements()}, target.options());
    if (communicator.rank() == 0) whole.copy_(moments.at(slot.spec.name).view(-1));
    communicator.broadcast(whole, 0, fmt::format("{} of {}", what, slot.spec.name));
    for (const optim::ParameterArena::OwnedRange& range : arena.owned()) {
      const Overlap overlap = overlap_of(slot, range);
      if (overlap.size == 0) continue;
      target.narrow(0, overlap.in_moments, overlap.size)
          .copy_(whole.narrow(0, overlap.in_tensor, overlap.size));
    }
  }
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

checkpoint::Snapshot take_snapshot(const optim::ParameterArena& arena, const at::Tensor& masters,
                                   const dist::Communicator& communicator, const TrainState& state,
                                   const Json& about) {
  checkpoint::Snapshot snapshot;
  snapshot.step = state.step;
  if (communicator.rank() == 0) {
    snapshot.weights = named_views(arena, masters);
    snapshot.state = state.to_json();
    snapshot.state.update(about);
  }
  if (arena.is_sharded()) {
    snapshot.num_shards = communicator.world_size();
    snapshot.slices = moment_slices(arena, communicator.rank());
  } else if (communicator.rank() == 0) {
    snapshot.exp_avg = named_views(arena, host_copy(arena.exp_avgs()));
    snapshot.exp_avg_sq = named_views(arena, host_copy(arena.exp_avg_sqs()));
  }
  return snapshot;
}

void share_weights(optim::ParameterArena& arena, dist::Communicator& communicator,
                   const std::function<at::Tensor(const ParameterSpec&)>& value) {
  const auto on_device = at::TensorOptions().dtype(at::kFloat).device(communicator.device());
  for (const Slot& slot : arena.slots()) {
    at::Tensor whole = at::empty(slot.spec.shape, on_device);
    if (communicator.rank() == 0) whole.copy_(value(slot.spec));
    communicator.broadcast(whole, 0, slot.spec.name);
    arena.set(slot, whole);
  }
}

std::function<at::Tensor(const ParameterSpec&)> weights_of(const checkpoint::Loaded& loaded,
                                                           const optim::ParameterArena& arena) {
  return [weights = checked(loaded.directory, "the weight", loaded.snapshot.weights, arena)](
             const ParameterSpec& spec) { return weights.at(spec.name); };
}

void restore_weights(const checkpoint::Loaded& loaded, optim::ParameterArena& arena) {
  const auto value = weights_of(loaded, arena);
  for (const Slot& slot : arena.slots()) arena.set(slot, value(slot.spec));
}

void restore(const checkpoint::Loaded* loaded, optim::ParameterArena& arena,
             dist::Communicator& communicator) {
  std::function<at::Tensor(const ParameterSpec&)> weights;
  TensorsByName first;
  TensorsByName second;
  if (loaded) {
    weights = weights_of(*loaded, arena);
    first = checked(loaded->directory, "the first moment", loaded->snapshot.exp_avg, arena);
    second = checked(loaded->directory, "the second moment", loaded->snapshot.exp_avg_sq, arena);
  }
  share_weights(arena, communicator, weights);
  spread_moments(first, arena.exp_avgs(), arena, communicator, "the first moment");
  spread_moments(second, arena.exp_avg_sqs(), arena, communicator, "the second moment");
}

}  // namespace osdn::train
