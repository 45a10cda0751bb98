// Walks little-endian fields of HDF5 structures and never past their end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace osdn::data::detail {

/// What a cursor throws when a structure is shorter than its fields; the reader adds file and structure.
struct Hdf5Overrun : std::runtime_error {
  Hdf5Overrun() : std::runtime_error("a structure ends before its fields do") {}
};

class Hdf5Cursor {
 public:
  explicit Hdf5Cursor(std::string_view bytes) : bytes_(bytes) {}

  /// An unsigned integer of 1 to 8 bytes.
  uint64_t number(size_t size_bytes) {
    const std::string_view field = text(size_bytes);
    uint64_t value = 0;
    for (size_t i = size_bytes; i > 0; --i) value = value << 8 | static_cast<unsigned char>(field[i - 1]);
    return value;
  }
  std::string_view text(uint64_t size_bytes) {
    if (size_bytes > bytes_.size() - position_) throw Hdf5Overrun();
    const std::string_view field = bytes_.substr(position_, size_bytes);
    position_ += size_bytes;
    return field;
  }
  void skip(uint64_t size_bytes) { text(size_bytes); }
  /// To the next multiple of 8 from the structure's start, or to its end.
  void align() { position_ = position_ + 7 < bytes_.size() ? (position_ + 7) & ~size_t{7} : bytes_.size(); }
  size_t rest() const { return bytes_.size() - position_; }

 private:
  std::string_view bytes_;
  size_t position_ = 0;
};

}  // namespace osdn::data::detail
