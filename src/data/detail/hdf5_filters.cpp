// The three filters of the HDF5 library, backwards: fletcher32 (a checksum at the end), deflate (a zlib
// stream), shuffle (first bytes of all elements, then all second bytes, ...).
#include <zlib.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/detail/hdf5_cursor.h"
#include "data/detail/hdf5_file.h"

namespace osdn::data::detail {
namespace hdf5_filters_detail {

constexpr size_t kChecksumBytes = 4;

uint32_t folded(uint32_t sum) { return (sum & 0xFFFF) + (sum >> 16); }

/// Fletcher's checksum over big-endian words, as the library computes it.
uint32_t fletcher32(std::string_view data) {
  constexpr size_t kWordsWithoutOverflow = 360;
  uint32_t first = 0;
  uint32_t second = 0;
  size_t words = 0;
  for (size_t i = 0; i < data.size(); i += 2) {
    const uint32_t low = i + 1 < data.size() ? static_cast<unsigned char>(data[i + 1]) : 0;
    first += static_cast<uint32_t>(static_cast<unsigned char>(data[i])) << 8 | low;
    second += first;
    if (++words % kWordsWithoutOverflow == 0) {
      first = folded(first);
      second = folded(second);
    }
  }
  return folded(folded(second)) << 16 | folded(folded(first));
}

/// At most `limit` bytes; false when the stream is damaged or longer.
bool inflate_whole(const std::string& packed, size_t limit, std::string* unpacked) {
  unpacked->assign(limit, '\0');
  auto size = static_cast<uLongf>(limit);
  const int status =
      ::uncompress(reinterpret_cast<Bytef*>(unpacked->data()), &size,
                   reinterpret_cast<const Bytef*>(packed.data()), static_cast<uLong>(packed.size()));
  if (status != Z_OK) return false;
  unpacked->resize(size);
  return true;
}

std::string unshuffled(const std::string& bytes, size_t element_bytes) {
  const size_t count = bytes.size() / element_bytes;
  std::string result = bytes;  // what is left over after whole elements stays in place
  for (size_t byte = 0; byte < element_bytes; ++byte)
    for (size_t i = 0; i < count; ++i) result[i * element_bytes + byte] = bytes[byte * count + i];
  return result;
}

}  // namespace hdf5_filters_detail

std::string unpack_chunk(const Hdf5Dataset& dataset, const Hdf5Chunk& chunk, std::string stored,
                         const std::string& path) {
  const auto fail = [&](const char* reason) {
    throw DataError("{}: damaged: the chunk at element {} {} (make it again with `osdn prepare`)", path,
                    chunk.first, reason);
  };
  const size_t chunk_bytes = dataset.chunk_elements * dataset.type.size_bytes;
  const size_t largest = chunk_bytes + hdf5_filters_detail::kChecksumBytes * dataset.filters.size();
  for (size_t i = dataset.filters.size(); i > 0; --i) {
    if (i - 1 < 32 && (chunk.filter_mask >> (i - 1) & 1) != 0) continue;
    const int filter = dataset.filters[i - 1].id;
    if (filter == Hdf5Filter::kFletcher32) {
      if (stored.size() < hdf5_filters_detail::kChecksumBytes) fail("is shorter than its checksum");
      const size_t size = stored.size() - hdf5_filters_detail::kChecksumBytes;
      const uint64_t expected = Hdf5Cursor(std::string_view(stored).substr(size)).number(4);
      stored.resize(size);
      if (hdf5_filters_detail::fletcher32(stored) != expected) fail("does not have its checksum");
    } else if (filter == Hdf5Filter::kDeflate) {
      std::string unpacked;
      if (!hdf5_filters_detail::inflate_whole(stored, largest, &unpacked)) fail("cannot be unpacked");
      stored = std::move(unpacked);
    } else {
      stored = hdf5_filters_detail::unshuffled(stored, dataset.type.size_bytes);
    }
  }
  if (stored.size() != chunk_bytes) fail("does not have its size");
  return stored;
}

}  // namespace osdn::data::detail
