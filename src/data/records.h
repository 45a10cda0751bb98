// Records (a text file, a JSON line, a row) that can't become documents: why, and how many of each kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace osdn::data {

enum class RecordFault { kInvalidUtf8, kBrokenJson, kCutOffLine, kKeyMissing, kNull, kNotText, kTooLong };

/// Names of the kinds, as prepare.json has them.
constexpr std::array<const char*, 7> kRecordFaultNames = {
    "invalid_utf8", "broken_json", "cut_off_line", "key_missing", "null", "not_text", "too_long"};

struct SkippedRecords {
  static constexpr size_t kMaxExamples = 5;

  std::array<int64_t, kRecordFaultNames.size()> counts{};  // by RecordFault
  std::vector<std::string> examples;                       // messages of the first few, in input order

  void add(RecordFault fault, std::string message) {
    ++counts[static_cast<size_t>(fault)];
    if (examples.size() < kMaxExamples) examples.push_back(std::move(message));
  }
  void add(const SkippedRecords& later) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += later.counts[i];
    for (const std::string& message : later.examples)
      if (examples.size() < kMaxExamples) examples.push_back(message);
  }
  int64_t total() const {
    int64_t sum = 0;
    for (const int64_t count : counts) sum += count;
    return sum;
  }
};

}  // namespace osdn::data
