// Names of places in this program's code, for reports.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace osdn::emulation {

/// An address in the program's code, as the program's file counts it.
uint32_t code_place(const void* address);

/// Chains of calls by number, 0: none.
class CallChains {
 public:
  /// `chain` and in its last function the place `place`.
  uint32_t extend(uint32_t chain, uint32_t place) {
    const uint64_t key = static_cast<uint64_t>(chain) << 32 | place;
    Recent& recent = recent_[(chain * 31 + place) % recent_.size()];
    if (recent.key != key) {
      const auto added = numbers_.try_emplace(key, static_cast<uint32_t>(links_.size()));
      if (added.second) links_.push_back({chain, place});
      recent = {key, added.first->second};
    }
    return recent.chain;
  }
  uint32_t caller(uint32_t chain) const { return links_[chain].caller; }
  /// Files and lines from the innermost call on, up to the launch; bare numbers where addr2line is missing.
  std::string describe(uint32_t chain) const;

 private:
  struct Link {
    uint32_t caller;
    uint32_t place;
  };
  struct Recent {
    uint64_t key = 0;
    uint32_t chain = 0;
  };
  std::vector<Link> links_ = {{0, 0}};
  std::unordered_map<uint64_t, uint32_t> numbers_;
  std::array<Recent, 4096> recent_ = {};
};

/// The function that begins at `place`.
std::string describe_function(uint32_t place);

}  // namespace osdn::emulation
