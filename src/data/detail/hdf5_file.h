// Reads the part of the HDF5 format that shards are made of, without the library: its versions in the
// distributions write past their buffers when a file's structures are damaged, and a shard is untrusted. What
// is understood is the library's default (oldest) format: groups as symbol tables, integers and fixed-length
// strings, contiguous, compact and chunked data behind the deflate, shuffle and fletcher32 filters.
// Everything else is refused. No length or address in a file is believed before it is compared with the
// file's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"

namespace osdn::data::detail {

struct Hdf5Type {
  enum class Kind { kInteger, kFloat, kText, kOther };
  Kind kind = Kind::kOther;
  std::string name;  // "uint16, little-endian", "float32, ...", "string", "compound", ...
  uint64_t size_bytes = 0;
  bool big_endian = false;
  bool is_signed = false;
};

struct Hdf5Filter {
  enum : int { kDeflate = 1, kShuffle = 2, kFletcher32 = 3 };
  int id = 0;
  std::string name;
};

/// Stored elements [first, first + chunk length).
struct Hdf5Chunk {
  uint64_t first = 0;
  uint64_t address = 0;      // in the file
  uint64_t size_bytes = 0;   // in the file, filtered
  uint32_t filter_mask = 0;  // bit i: filter i was left out
};

struct Hdf5Dataset {
  Hdf5Type type;
  std::vector<uint64_t> dims;       // extents
  bool chunked = false;             // else the data are in one piece at `address`
  uint64_t address = 0;             // in the file
  uint64_t chunk_elements = 0;      // of a chunk
  std::vector<Hdf5Chunk> chunks;    // by `first`, covering all elements
  std::vector<Hdf5Filter> filters;  // in the order of writing
  uint64_t num_elements() const;
};

class Hdf5File {
 public:
  /// Reads the structures of the root group. Throws DataError naming the file and the reason.
  explicit Hdf5File(const File& file);

  /// Of the root group. Nothing when absent, of another type, or not of one element.
  std::optional<int64_t> integer_attribute(const std::string& name) const;
  std::optional<std::string> text_attribute(const std::string& name) const;

  /// A dataset of the root group, nothing when absent. Its data are not looked at, except that they must lie
  /// within the file.
  std::optional<Hdf5Dataset> dataset(const std::string& name) const;

 private:
  struct Message {
    int type = 0;
    uint8_t flags = 0;
    std::string body;
  };
  struct Attribute {
    Hdf5Type type;
    std::vector<uint64_t> dims;
    std::string value;
  };

  [[noreturn]] void damaged(const std::string& reason) const;
  std::string bytes(uint64_t address, uint64_t size_bytes, const char* what) const;
  std::vector<Message> object_header(uint64_t address) const;
  void read_group(uint64_t tree, uint64_t heap);
  void read_symbols(uint64_t node, const std::string& names);
  Attribute parse_attribute(const Message& message, std::string* name) const;
  void parse_layout(const Message& message, Hdf5Dataset* dataset) const;
  void read_chunk_index(uint64_t address, Hdf5Dataset* dataset) const;
  void check_chunks(Hdf5Dataset* dataset) const;

  const File& file_;
  uint64_t size_bytes_ = 0;
  std::map<std::string, Attribute> attributes_;
  std::map<std::string, uint64_t> links_;  // name -> address of its object header
};

/// The elements of one chunk, unpacked: `stored` is what lies at the chunk's address. Throws DataError naming
/// `path`.
std::string unpack_chunk(const Hdf5Dataset& dataset, const Hdf5Chunk& chunk, std::string stored,
                         const std::string& path);

}  // namespace osdn::data::detail
