// What was last done to memory, for the race check (race_check.h): two bytes a cell, made where it is
// touched.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace osdn::emulation::races {

enum class Access : uint8_t;

/// An access: which block's (counted over all launches, 0: none), which agent's and when, and from where.
struct Epoch {
  uint32_t block = 0;
  uint32_t time = 0;
  uint32_t site = 0;  // of the program's code
  uint16_t agent = 0;
  Access kind{};
};

struct Cell {
  Epoch write;              // the last one
  Epoch read;               // since then, one that no other read is known to follow
  uint32_t more_reads = 0;  // further ones (ShadowMemory::reads), 0: none
  Epoch foreign_read;       // of a block before the one that read last
};

class ShadowMemory {
 public:
  static constexpr size_t kCellBytes = 2;

  Cell& at(uintptr_t address) {
    const uintptr_t number = address / kPageBytes;
    Recent& recent = recent_[number % recent_.size()];
    if (recent.number != number) {
      std::unique_ptr<Page>& page = pages_[number];
      if (!page) page = std::make_unique<Page>();
      recent = {number, page.get()};
    }
    return (*recent.page)[address % kPageBytes / kCellBytes];
  }

  std::vector<Epoch>& reads(Cell& cell) {
    if (cell.more_reads == 0) {
      if (used_ == sets_.size()) sets_.emplace_back();
      sets_[used_].clear();
      cell.more_reads = static_cast<uint32_t>(++used_);
    }
    return sets_[cell.more_reads - 1];
  }
  /// What earlier blocks have read is in no set.
  void begin_block() { used_ = 0; }

 private:
  static constexpr size_t kPageBytes = 4096;
  using Page = std::array<Cell, kPageBytes / kCellBytes>;
  struct Recent {
    uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::array<Recent, 512> recent_ = {};
  std::vector<std::vector<Epoch>> sets_;
  size_t used_ = 0;
};

}  // namespace osdn::emulation::races
