// The order of samples: a keyed permutation of 0 .. n-1 that is computed, never stored, so that any position
// of any epoch can be asked for at once and no rank needs to know of another.
#pragma once

#include <array>
#include <cstdint>

namespace osdn::data {

/// A Feistel network over the smallest power of four that holds n, walked until it lands below n.
class SampleOrder {
 public:
  /// n >= 1.
  SampleOrder(uint64_t seed, uint64_t epoch, int64_t n);

  /// A bijection of [0, n).
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 6;
  uint64_t permute(uint64_t value) const;

  int64_t n_;
  int half_bits_ = 1;
  uint64_t half_mask_ = 1;
  std::array<uint64_t, kRounds> keys_ = {};
};

/// The mixing function behind it (splitmix64's finaliser): the same bits on every machine.
uint64_t mix64(uint64_t value);

}  // namespace osdn::data
