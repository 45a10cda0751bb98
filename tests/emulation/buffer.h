// Memory for kernels that run on the CPU or, with OSDN_ON_DEVICE, on a GPU; and what tests compare.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#ifdef OSDN_ON_DEVICE
#include "tests/emulation/device_copy.h"
#endif

namespace osdn::kernels::emulation_test {

using Numbers = std::vector<double>;

/// Memory as the kernels take it: aligned, NaN until written. Of a GPU the test has a copy, which
/// launch_checked keeps equal.
template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t size)
      : size_(size), bytes_(size * sizeof(T) + 2 * kGuardBytes + kAlignment, kUnwritten) {
    const auto begin = reinterpret_cast<uintptr_t>(bytes_.data()) + kGuardBytes;
    data_ = reinterpret_cast<T*>((begin + kAlignment - 1) / kAlignment * kAlignment);
#ifdef OSDN_ON_DEVICE
    device_ = std::make_unique<DeviceCopy>(data_, size, sizeof(T));
#endif
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&&) = default;
  Buffer& operator=(Buffer&&) = default;
  ~Buffer() = default;

  /// For the kernels.
#ifdef OSDN_ON_DEVICE
  T* get() const { return static_cast<T*>(device_->memory()); }
#else
  T* get() const { return data_; }
#endif
  /// For the test.
  T* host() const { return data_; }
  T& operator[](size_t i) const { return data_[i]; }
  size_t size() const { return size_; }
  Numbers numbers() const {
    Numbers out(size_);
    for (size_t i = 0; i < size_; ++i) out[i] = static_cast<float>(data_[i]);
    return out;
  }
  /// Whether nothing was written in front of it or behind it.
  bool guards_intact() const {
    const auto* begin = reinterpret_cast<const unsigned char*>(data_);
    const auto unwritten = [](unsigned char byte) { return byte == kUnwritten; };
    return std::all_of(bytes_.data(), begin, unwritten) &&
           std::all_of(begin + size_ * sizeof(T), bytes_.data() + bytes_.size(), unwritten);
  }

 private:
  static constexpr size_t kAlignment = 256;
  static constexpr size_t kGuardBytes = 256;
  static constexpr unsigned char kUnwritten = 0xff;

  size_t size_;
  std::vector<unsigned char> bytes_;
  T* data_;
#ifdef OSDN_ON_DEVICE
  std::unique_ptr<DeviceCopy> device_;
#endif
};

template <typename T>
Buffer<T> buffer_of(const std::vector<T>& numbers) {
  Buffer<T> out(numbers.size());
  std::copy(numbers.begin(), numbers.end(), out.host());
  return out;
}

/// RMS of the difference over that of `expected`; over 1 where that is 0.
inline double relative_error(const Numbers& actual, const Numbers& expected) {
  if (actual.size() != expected.size()) return INFINITY;
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

}  // namespace osdn::kernels::emulation_test
