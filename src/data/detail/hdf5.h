// The few things of the HDF5 library that the shard writer needs. hid_t is int64_t (asserted in the .cpp).
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace osdn::data::detail {

/// Held around every call into the library: distributions build it without thread safety.
class Hdf5Guard {
 public:
  Hdf5Guard();  // also keeps the library from printing its error stack

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

/// An open HDF5 identifier and the function that closes it.
class Hdf5Id {
 public:
  using Close = int (*)(int64_t);
  Hdf5Id() = default;
  Hdf5Id(int64_t id, Close closer) : id_(id), close_(closer) {}
  Hdf5Id(Hdf5Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Id& operator=(Hdf5Id&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Id() { reset(); }

  /// What the library says: negative when closing failed, as it does when what it still had to write could
  /// not be.
  int close() {
    if (id_ < 0) return 0;
    const Hdf5Guard guard;
    return close_(std::exchange(id_, -1));
  }
  void reset() { close(); }
  int64_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }

 private:
  int64_t id_ = -1;
  Close close_ = nullptr;
};

/// What the library says of its last failure, outermost first, on one line.
std::string hdf5_failure();

}  // namespace osdn::data::detail
