#include "ops/sequences.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace {

at::Tensor index_tensor(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(device);
}

}  // namespace

std::shared_ptr<const Sequences> Sequences::make(std::vector<int64_t> offsets, at::Device device) {
  if (offsets.empty() || offsets.front() != 0)
    throw UserError("sequences: offsets: expected S + 1 ascending values of which the first is 0, got {}",
                    offsets.empty() ? std::string("none") : "first value " + std::to_string(offsets.front()));
  for (size_t i = 1; i < offsets.size(); ++i)
    if (offsets[i] < offsets[i - 1])
      throw UserError("sequences: offsets: expected ascending values, got {} after {} at position {}",
                      offsets[i], offsets[i - 1], i);
  return std::shared_ptr<const Sequences>(new Sequences(std::move(offsets), device));
}

std::shared_ptr<const Sequences> Sequences::equal(int64_t num, int64_t length, at::Device device) {
  if (num < 0 || length < 0)
    throw UserError("sequences: expected a number and a length of at least 0, got {} sequences of {} tokens",
                    num, length);
  std::vector<int64_t> offsets(static_cast<size_t>(num + 1));
  for (int64_t i = 0; i <= num; ++i) offsets[static_cast<size_t>(i)] = i * length;
  return make(std::move(offsets), device);
}

Sequences::Sequences(std::vector<int64_t> offsets, at::Device device) : host_(std::move(offsets)) {
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
  const at::Device device = device_offsets_.device();
  list = std::make_unique<ChunkList>(ChunkList{.offsets = index_tensor(offsets, device),
                                               .sequences = index_tensor(sequences, device),
                                               .num_chunks = offsets.back()});
  return *list;
}

}  // namespace osdn::ops
