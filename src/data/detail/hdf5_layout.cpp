// Where the elements of an HDF5 dataset lie in its file: in one piece, or in chunks behind filters.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "data/detail/hdf5_cursor.h"
#include "data/detail/hdf5_file.h"

namespace osdn::data::detail {
namespace hdf5_layout_detail {

// Deflate makes at most 1,032 bytes out of one: a chunk that is larger than this many times the file is no
// chunk of it.
constexpr uint64_t kMaxExpansion = 1040;
constexpr uint64_t kMaxLevels = 16;  // of a B-tree

bool is_known(const Hdf5Filter& filter) {
  return filter.id >= Hdf5Filter::kDeflate && filter.id <= Hdf5Filter::kFletcher32;
}

}  // namespace hdf5_layout_detail

void Hdf5File::parse_layout(const Message& message, Hdf5Dataset* dataset) const {
  Hdf5Cursor cursor(message.body);
  if (cursor.number(1) != 3)
    damaged("a data layout of another version than 3; write it in the library's default format");
  const uint64_t kind = cursor.number(1);
  enum : uint64_t { kCompact = 0, kContiguous = 1, kChunked = 2 };
  uint64_t total = 0;  // bytes of all elements
  if (__builtin_mul_overflow(dataset->num_elements(), dataset->type.size_bytes, &total))
    damaged(fmt::format("a dataset of {} elements", dataset->num_elements()));
  if (kind == kCompact) damaged("data inside an object header");
  if (kind == kContiguous) {
    dataset->address = cursor.number(8);
    const uint64_t size = cursor.number(8);
    if (total == 0) return;
    if (size < total) damaged(fmt::format("{} bytes for data of {}", size, total));
    if (dataset->address > size_bytes_ || total > size_bytes_ - dataset->address)
      throw DataError(
          "{}: truncated: data of {} bytes at byte {}, the file has {} (make it again with `osdn prepare`)",
          file_.path(), total, dataset->address, size_bytes_);
    return;
  }
  if (kind != kChunked) damaged(fmt::format("a data layout of kind {}", kind));
  dataset->chunked = true;
  if (cursor.number(1) != 2) damaged("chunks of another rank than their dataset");
  const uint64_t index = cursor.number(8);
  dataset->chunk_elements = cursor.number(4);
  if (cursor.number(4) != dataset->type.size_bytes)
    damaged("chunks of another element size than their dataset");
  const uint64_t chunk_bytes = dataset->chunk_elements * dataset->type.size_bytes;  // below 2^35
  if (dataset->chunk_elements == 0 || chunk_bytes > hdf5_layout_detail::kMaxExpansion * size_bytes_)
    damaged(fmt::format("chunks of {} bytes in a file of {}", chunk_bytes, size_bytes_));
  if (!std::all_of(dataset->filters.begin(), dataset->filters.end(), hdf5_layout_detail::is_known))
    return;                                    // the caller refuses it, with the filter's name
  constexpr uint64_t kNoIndex = ~uint64_t{0};  // of a dataset that nothing was written to
  if (total > 0 && index != kNoIndex) read_chunk_index(index, dataset);
  check_chunks(dataset);
}

void Hdf5File::read_chunk_index(uint64_t address, Hdf5Dataset* dataset) const {
  std::set<uint64_t> seen;
  std::vector<std::pair<uint64_t, uint64_t>> nodes = {
      {address, hdf5_layout_detail::kMaxLevels}};  // address, levels left
  while (!nodes.empty()) {
    const auto [node, levels] = nodes.back();
    nodes.pop_back();
    if (!seen.insert(node).second) damaged("the index of chunks meets itself");
    const std::string header = bytes(node, 24, "the index of chunks");
    Hdf5Cursor head(header);
    if (head.text(4) != "TREE" || head.number(1) != 1) damaged("the index of chunks is none");
    const uint64_t level = head.number(1);
    const uint64_t count = head.number(2);
    if (level >= levels) damaged("the index of chunks does not come to an end");
    const std::string body = bytes(node + 24, 32 * count, "the index of chunks");
    Hdf5Cursor entries(body);
    for (uint64_t i = 0; i < count; ++i) {
      Hdf5Chunk chunk;
      chunk.size_bytes = entries.number(4);
      chunk.filter_mask = static_cast<uint32_t>(entries.number(4));
      chunk.first = entries.number(8);
      entries.skip(8);
      chunk.address = entries.number(8);
      if (level > 0)
        nodes.emplace_back(chunk.address, level);
      else
        dataset->chunks.push_back(chunk);
    }
  }
}

void Hdf5File::check_chunks(Hdf5Dataset* dataset) const {
  std::vector<Hdf5Chunk>& chunks = dataset->chunks;
  std::sort(chunks.begin(), chunks.end(),
            [](const Hdf5Chunk& a, const Hdf5Chunk& b) { return a.first < b.first; });
  const uint64_t chunk_bytes = dataset->chunk_elements * dataset->type.size_bytes;
  const uint64_t num_elements = dataset->num_elements();
  const uint64_t expected =
      num_elements / dataset->chunk_elements + (num_elements % dataset->chunk_elements != 0);
  if (chunks.size() != expected)
    damaged(fmt::format("{} chunks of {} elements for {} elements: some were never written", chunks.size(),
                        dataset->chunk_elements, num_elements));
  uint64_t next = 0;
  for (const Hdf5Chunk& chunk : chunks) {
    if (chunk.first != next)
      damaged(fmt::format("a chunk begins at element {}, expected {}", chunk.first, next));
    next += dataset->chunk_elements;
    if (chunk.address > size_bytes_ || chunk.size_bytes > size_bytes_ - chunk.address)
      damaged(fmt::format("the chunk at element {} lies outside of the file", chunk.first));
    if (dataset->filters.empty() && chunk.size_bytes != chunk_bytes)
      damaged(fmt::format("the chunk at element {} has {} bytes, expected {}", chunk.first, chunk.size_bytes,
                          chunk_bytes));
  }
  // Chunks that share bytes would let a small file stand for an endless one.
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const Hdf5Chunk& chunk : chunks) places.emplace_back(chunk.address, chunk.address + chunk.size_bytes);
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i)
    if (places[i].first < places[i - 1].second) damaged("chunks share bytes of the file");
}

}  // namespace osdn::data::detail
