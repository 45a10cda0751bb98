#include "data/sample_order.h"

#include "base/error.h"

namespace osdn::data {

uint64_t mix64(uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

SampleOrder::SampleOrder(uint64_t seed, uint64_t epoch, int64_t n) : n_(n) {
  OSDN_ASSERT(n >= 1, "an order of {} samples", n);
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < static_cast<uint64_t>(n)) ++half_bits_;
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  uint64_t state = mix64(mix64(seed) ^ epoch);
  for (uint64_t& key : keys_) key = state = mix64(state);
}

uint64_t SampleOrder::permute(uint64_t value) const {
  uint64_t left = value >> half_bits_;
  uint64_t right = value & half_mask_;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (mix64(right ^ key) & half_mask_);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t SampleOrder::operator()(int64_t index) const {
  OSDN_ASSERT(index >= 0 && index < n_, "sample {} of {}", index, n_);
  auto value = static_cast<uint64_t>(index);
  // The walk follows the index's own cycle, so it ends, and two indices never meet.
  do {
    value = permute(value);
  } while (value >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(value);
}

}  // namespace osdn::data
