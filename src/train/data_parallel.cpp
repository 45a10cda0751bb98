#include "train/data_parallel.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "tensor/torch.h"

namespace osdn::train {
namespace data_parallel_detail {

// Few and large, for what a collective costs beside its transfer is paid by the bucket: ranks that are not
// equally fast wait for each other in it, and kernels that fill the GPU run twice as long while it holds
// processors. Small at the end, where nothing hides the last sum of a step, nor the first weights of the
// next. 256 and 64 MiB of fp32 gradients; of a small model an eighth, so that there is something to hide.
constexpr int64_t kLargestBucket = int64_t{64} << 20;  // elements
constexpr int64_t kLastBuckets = int64_t{16} << 20;    // elements of each
constexpr int64_t kFewestBuckets = 8;
// Copy engines begin when so many of the buckets are complete, and then bring all of them in one go: the same
// bytes cost a step less in one burst than spread over backward (docs/scaling.md, "Measured on two GPUs").
// What is left of backward hides it: last buckets are small, so a sixth of backward where there are ten.
constexpr int64_t first_burst(int64_t num_buckets) { return num_buckets * 3 / 5; }

using Range = optim::ParameterArena::Range;

at::Tensor part_of(const at::Tensor& arena, const Range& range) {
  return arena.narrow(0, range.begin, range.size());
}

/// As the ops read them.
const at::Tensor& weights_of(const optim::ParameterArena& arena) {
  return arena.compute_copy().defined() ? arena.compute_copy() : arena.masters();
}

}  // namespace data_parallel_detail

optim::ParameterArena::Sharding arena_sharding(const dist::Communicator& communicator, int64_t zero,
                                               int64_t num_parameters) {
  namespace detail = data_parallel_detail;
  if (!communicator.is_connected()) return {};
  const int64_t elements =
      std::clamp<int64_t>(num_parameters / detail::kFewestBuckets, 1, detail::kLargestBucket);
  const int64_t last = std::min(elements, detail::kLastBuckets);
  if (zero == 0) return {.bucket_elements = elements, .last_elements = last};
  return {.shared = true,
          .world_size = communicator.world_size(),
          .rank = communicator.rank(),
          .bucket_elements = elements,
          .last_elements = last};
}

DataParallel::DataParallel(optim::ParameterArena& arena, dist::Communicator& communicator, int64_t num_layers,
                           config::Exchange exchange)
    : arena_(arena), communicator_(communicator), connected_(communicator.is_connected()) {
  if (!connected_) return;
  const auto& buckets = arena.buckets();
  const int64_t num_stages = num_layers + 2;
  common_complete_ = num_stages;
  complete_.assign(static_cast<size_t>(num_stages), static_cast<int64_t>(buckets.size()));
  weights_in_.resize(static_cast<size_t>(num_stages));
  for (const optim::ParameterArena::Slot& slot : arena.slots()) {
    const auto layer = static_cast<size_t>(model::layer_of(slot.spec.name, num_layers));
    const int64_t end = slot.offset + slot.spec.num_elements();
    for (const optim::ParameterArena::OwnedRange& range : arena.owned())
      if (range.common && slot.offset < range.end && end > range.begin)
        common_complete_ = std::min(common_complete_, static_cast<int64_t>(layer));
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      if (end <= buckets[bucket].begin || slot.offset >= buckets[bucket].end) continue;
      const auto number = static_cast<int64_t>(bucket);
      // A layer's gradients keep every bucket from completion in which they, or those of layers before it,
      // lie.
      for (size_t later = layer + 1; later < complete_.size(); ++later)
        complete_[later] = std::min(complete_[later], number);
      if (weights_in_[layer].empty() || weights_in_[layer].back() != number)
        weights_in_[layer].push_back(number);
    }
  }
  gathers_.resize(buckets.size());
  if (exchange == config::Exchange::kAuto) {
    std::vector<at::Tensor> arenas = {arena.gradients()};
    if (arena.is_sharded()) arenas.push_back(data_parallel_detail::weights_of(arena));
    if (communicator.share(arenas))
      first_burst_ = data_parallel_detail::first_burst(static_cast<int64_t>(buckets.size()));
  }
  first_hooks_.before_forward = [this](int64_t layer) {
    for (const int64_t bucket : weights_in_[static_cast<size_t>(layer)]) wait_for_bucket(bucket);
  };
  last_hooks_ = first_hooks_;
  last_hooks_.after_backward = [this](int64_t layer) { after_backward(layer); };
}

const model::LayerHooks* DataParallel::hooks(bool last_micro_batch) {
  if (!connected_) return nullptr;
  return last_micro_batch ? &last_hooks_ : &first_hooks_;
}

void DataParallel::after_backward(int64_t layer) {
  const int64_t complete = complete_[static_cast<size_t>(layer)];
  while (complete >= first_burst_ && static_cast<int64_t>(reductions_.size()) < complete)
    reduce_next_bucket();
  if (layer == common_complete_) reduce_common();
}

void DataParallel::reduce_next_bucket() {
  const size_t bucket = reductions_.size();
  reductions_.push_back(communicator_.start(
      {.kind =
           arena_.is_sharded() ? dist::CollectiveKind::kReduceScatter : dist::CollectiveKind::kAllReduceSum,
       .range = data_parallel_detail::part_of(arena_.gradients(), arena_.buckets()[bucket]),
       .root = 0,
       .what = "gradients of bucket " + std::to_string(bucket)}));
}

void DataParallel::reduce_common() {
  for (const optim::ParameterArena::OwnedRange& range : arena_.owned())
    if (range.common)
      common_.push_back(
          communicator_.start({.kind = dist::CollectiveKind::kAllReduceSum,
                               .range = data_parallel_detail::part_of(arena_.gradients(), range),
                               .root = 0,
                               .what = "gradients of the full-precision parameters"}));
}

void DataParallel::begin_passes() {
  if (gathers_in_passes_) gather_weights();
}

void DataParallel::finish_gradients() {
  if (!connected_) return;
  if (common_.empty()) reduce_common();
  while (reductions_.size() < arena_.buckets().size()) reduce_next_bucket();
  for (auto* started : {&common_, &reductions_}) {
    for (const auto& reduction : *started) reduction->wait();
    started->clear();
  }
}

void DataParallel::update(const optim::AdamWOptions& options, double learning_rate, int64_t update,
                          double gradient_scale) {
  const auto& owned = arena_.owned();
  // Backwards: the next forward pass begins with the weights at the arena's end.
  for (size_t i = owned.size(); i-- > 0;) {
    optim::adamw_step(arena_, owned[i], options, learning_rate, update, gradient_scale);
    if (arena_.is_sharded() && !owned[i].common && !gathers_in_passes_) gather(static_cast<int64_t>(i));
  }
  in_parts_ = gathers_in_passes_;
}

void DataParallel::gather_weights() {
  for (size_t bucket = gathers_.size(); bucket-- > 0;) gather(static_cast<int64_t>(bucket));
  in_parts_ = false;
}

void DataParallel::gather(int64_t bucket) {
  const at::Tensor& weights = data_parallel_detail::weights_of(arena_);
  const auto index = static_cast<size_t>(bucket);
  gathers_[index] =
      communicator_.start({.kind = dist::CollectiveKind::kAllGather,
                           .range = data_parallel_detail::part_of(weights, arena_.buckets()[index]),
                           .root = 0,
                           .what = "weights of bucket " + std::to_string(bucket)});
}

void DataParallel::wait_for_bucket(int64_t bucket) {
  const auto running = std::move(gathers_[static_cast<size_t>(bucket)]);
  if (running) running->wait();
}

void DataParallel::wait_for_weights() {
  if (in_parts_) gather_weights();
  for (size_t bucket = gathers_.size(); bucket-- > 0;) wait_for_bucket(static_cast<int64_t>(bucket));
}

at::Tensor DataParallel::gather_masters() {
  namespace detail = data_parallel_detail;
  wait_for_weights();
  const bool saves = communicator_.rank() == 0;
  at::Tensor host;  // [P]
  if (!arena_.masters_shared_out()) {
    // Without a compute copy the masters are the weights.
    if (saves) host = arena_.masters().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    return host;
  }
  if (saves) host = at::empty({arena_.size()}, at::kFloat);
  const auto& owned = arena_.owned();
  for (size_t i = 0; i < owned.size(); ++i) {
    const at::Tensor own = arena_.masters().narrow(0, owned[i].masters, owned[i].size());
    if (owned[i].common) {
      if (saves) detail::part_of(host, owned[i]).copy_(own);
      continue;
    }
    const auto& bucket = arena_.buckets()[i];
    const at::Tensor whole = at::empty({bucket.size()}, own.options());
    whole.narrow(0, owned[i].begin - bucket.begin, own.numel()).copy_(own);
    communicator_.all_gather(whole, "master weights of bucket " + std::to_string(i));
    if (saves) detail::part_of(host, bucket).copy_(whole);
  }
  communicator_.check();
  return host;
}

double DataParallel::add_squares(const std::vector<std::vector<double>>& squares_of_ranks) const {
  double sum = squares_of_ranks.front().at(1);  // common: the same on every rank
  if (!arena_.is_sharded()) return sum + squares_of_ranks.front().at(0);
  for (const std::vector<double>& squares : squares_of_ranks) sum += squares.at(0);
  return sum;
}

std::vector<std::vector<double>> exchange(dist::Communicator& communicator, const at::Tensor& row,
                                          const char* what) {
  const int64_t length = row.numel();
  const at::Tensor rows = at::zeros({communicator.world_size(), length}, row.options());  // [ranks, n]
  rows.select(0, communicator.rank()).copy_(row);
  communicator.all_gather(rows, what);
  const at::Tensor host = communicator.to_host(rows);
  const double* values = host.data_ptr<double>();
  std::vector<std::vector<double>> result;
  for (int64_t rank = 0; rank < communicator.world_size(); ++rank)
    result.emplace_back(values + rank * length, values + (rank + 1) * length);
  return result;
}

}  // namespace osdn::train
