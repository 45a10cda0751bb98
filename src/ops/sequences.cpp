#include "ops/sequences.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace {

/// From pinned memory to a GPU, so that the host need not wait for what is queued there.
at::Tensor index_tensor(const std::vector<int64_t>& values, at::Device device) {
  const at::Tensor host = at::tensor(values, at::TensorOptions().dtype(at::kLong));
  return device.is_cuda() ? host.pin_memory().to(device, /*non_blocking=*/true) : host.to(device);
}

void check_offsets(const std::vector<int64_t>& offsets) {
  if (offsets.empty() || offsets.front() != 0)
    throw UserError("sequences: offsets: expected S + 1 ascending values of which the first is 0, got {}",
                    offsets.empty() ? std::string("none") : "first value " + std::to_string(offsets.front()));
  for (size_t i = 1; i < offsets.size(); ++i)
    if (offsets[i] < offsets[i - 1])
      throw UserError("sequences: offsets: expected ascending values, got {} after {} at position {}",
                      offsets[i], offsets[i - 1], i);
}

thread_local bool sequences_apart = false;

}  // namespace

SequencesApart::SequencesApart() : before_(sequences_apart) { sequences_apart = true; }
SequencesApart::~SequencesApart() { sequences_apart = before_; }

bool SequencesApart::holds_for(const at::Tensor& x) {
  return sequences_apart && x.is_cuda() && !at::GradMode::is_enabled();
}

std::shared_ptr<const Sequences> Sequences::make(std::vector<int64_t> offsets, at::Device device) {
  check_offsets(offsets);
  return std::shared_ptr<const Sequences>(new Sequences(std::move(offsets), device, /*padded=*/false));
}

std::shared_ptr<const Sequences> Sequences::padded(std::vector<int64_t> offsets, int64_t num_sequences,
                                                   at::Device device) {
  check_offsets(offsets);
  const size_t end = static_cast<size_t>(num_sequences) + 1;
  OSDN_ASSERT(num_sequences > 0 && offsets.size() <= end, "{} sequences padded to {}", offsets.size() - 1,
              num_sequences);
  offsets.resize(end, offsets.back());
  return std::shared_ptr<const Sequences>(new Sequences(std::move(offsets), device, /*padded=*/true));
}

std::shared_ptr<const Sequences> Sequences::equal(int64_t num, int64_t length, at::Device device) {
  if (num < 0 || length < 0)
    throw UserError("sequences: expected a number and a length of at least 0, got {} sequences of {} tokens",
                    num, length);
  std::vector<int64_t> offsets(static_cast<size_t>(num + 1));
  for (int64_t i = 0; i <= num; ++i) offsets[static_cast<size_t>(i)] = i * length;
  return make(std::move(offsets), device);
}

Sequences::Sequences(std::vector<int64_t> offsets, at::Device device, bool padded)
    : host_(std::move(offsets)), padded_(padded) {
  const auto length = [this](int64_t s) {
    return host_[static_cast<size_t>(s) + 1] - host_[static_cast<size_t>(s)];
  };
  for (int64_t s = 0; s < num_sequences(); ++s) max_length_ = std::max(max_length_, length(s));
  host_order_.resize(host_.size() - 1);
  std::iota(host_order_.begin(), host_order_.end(), int64_t{0});
  std::stable_sort(host_order_.begin(), host_order_.end(),
                   [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::vector<int64_t> inverse(host_order_.size());
  for (size_t i = 0; i < host_order_.size(); ++i)
    inverse[static_cast<size_t>(host_order_[i])] = static_cast<int64_t>(i);
  device_offsets_ = index_tensor(host_, device);
  order_ = index_tensor(host_order_, device);
  inverse_order_ = index_tensor(inverse, device);
}

const ChunkTable& Sequences::chunks(int64_t chunk_size) const {
  OSDN_ASSERT(chunk_size > 0, "chunk size {}", chunk_size);
  lengths_read_ = true;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<ChunkTable>& table = tables_[chunk_size];
  if (table) return *table;
  table = std::make_unique<ChunkTable>();
  table->chunk_size = chunk_size;
  std::vector<int64_t> gather;
  std::vector<int64_t> scatter(static_cast<size_t>(num_tokens()));
  table->step_begin.push_back(0);
  for (int64_t step = 0; step * chunk_size < max_length_; ++step) {
    for (const int64_t sequence : host_order_) {
      const int64_t begin = host_[static_cast<size_t>(sequence)] + step * chunk_size;
      const int64_t end = host_[static_cast<size_t>(sequence) + 1];
      if (begin >= end) break;  // the rest of the order is shorter still
      for (int64_t slot = 0; slot < chunk_size; ++slot) {
        const int64_t token = begin + slot;
        if (token < end) scatter[static_cast<size_t>(token)] = static_cast<int64_t>(gather.size());
        gather.push_back(token < end ? token : num_tokens());
      }
    }
    table->step_begin.push_back(static_cast<int64_t>(gather.size()) / chunk_size);
  }
  table->gather = index_tensor(gather, device_offsets_.device());
  table->scatter = index_tensor(scatter, device_offsets_.device());
  return *table;
}

const ChunkList& Sequences::chunk_list(int64_t chunk_size) const {
  OSDN_ASSERT(chunk_size > 0, "chunk size {}", chunk_size);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<ChunkList>& list = lists_[chunk_size];
  if (list) return *list;
  std::vector<int64_t> offsets = {0};
  std::vector<int64_t> sequences;
  for (size_t s = 0; s + 1 < host_.size(); ++s) {
    const int64_t chunks = (host_[s + 1] - host_[s] + chunk_size - 1) / chunk_size;
    sequences.insert(sequences.end(), static_cast<size_t>(chunks), static_cast<int64_t>(s));
    offsets.push_back(offsets.back() + chunks);
  }
  if (padded_) sequences.resize(static_cast<size_t>(chunk_capacity(chunk_size)), num_sequences() - 1);
  const at::Device device = device_offsets_.device();
  list = std::make_unique<ChunkList>(ChunkList{.offsets = index_tensor(offsets, device),
                                               .sequences = index_tensor(sequences, device),
                                               .num_chunks = static_cast<int64_t>(sequences.size())});
  return *list;
}

/// Each sequence has at most one chunk that is not full.
int64_t Sequences::chunk_capacity(int64_t chunk_size) const {
  return num_tokens() / chunk_size + num_sequences();
}

void Sequences::prepare_lists(const Sequences& like) const {
  std::vector<int64_t> sizes;
  {
    const std::lock_guard<std::mutex> lock(like.mutex_);
    for (const auto& [size, list] : like.lists_) sizes.push_back(size);
  }
  for (const int64_t size : sizes) chunk_list(size);
}

void Sequences::copy_tensors(const Sequences& other) const {
  OSDN_ASSERT(padded_ && other.padded_ && num_tokens() == other.num_tokens() &&
                  num_sequences() == other.num_sequences(),
              "{} tokens in {} sequences copied over {} in {}", other.num_tokens(), other.num_sequences(),
              num_tokens(), num_sequences());
  const auto copy = [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); };
  copy(device_offsets_, other.device_offsets_);
  copy(order_, other.order_);
  copy(inverse_order_, other.inverse_order_);
  for (const auto& [size, list] : lists_) {
    const ChunkList& from = other.chunk_list(size);
    copy(list->offsets, from.offsets);
    copy(list->sequences, from.sequences);
  }
}

}  // namespace osdn::ops
