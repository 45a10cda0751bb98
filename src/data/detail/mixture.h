// Which source a sample comes from: a function of the global sample index alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace osdn::data::detail {

/// Every block of 65,536 samples takes the same fixed number from each source (its share of the weights,
/// rounded by largest remainder, at least one), spread evenly by smooth weighted round-robin. A source's own
/// samples stay in order.
class Mixture {
 public:
  static constexpr int64_t kBlock = 1 << 16;

  /// Positive weights; one source needs no table.
  explicit Mixture(const std::vector<double>& weights);

  struct Place {
    size_t source = 0;
    int64_t index = 0;  // how many samples of that source came before
  };
  Place operator()(int64_t sample) const;

 private:
  std::vector<int64_t> quotas_;     // [sources] sum kBlock
  std::vector<uint16_t> source_;    // [kBlock] by place in the block
  std::vector<uint16_t> previous_;  // [kBlock] samples of the same source before it in the block
};

}  // namespace osdn::data::detail
