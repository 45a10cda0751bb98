// How far an unfinished preparation has come: written whenever a shard is done and every few dozen megabytes,
// after everything that it speaks of is on the medium. The next call continues from here, with any number of
// workers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/records.h"
#include "data/shard.h"

namespace osdn::data::detail {

/// Of one side of the split.
struct SplitState {
  int64_t closed_shards = 0;
  std::optional<ShardPosition> open;  // of the shard after them, if it has begun
  int64_t documents = 0;              // of all of them, like the rest
  int64_t tokens = 0;
  int64_t bytes = 0;  // of text
};

/// What was counted of the input so far.
struct InputCounts {
  int64_t batches = 0;      // stretches of the reader that are done
  uint64_t digest = 0;      // of what they were
  int64_t input_bytes = 0;  // of the files
  int64_t dropped = 0;      // documents without text
  int64_t checked = 0;      // documents decoded again
  int64_t changed = 0;      // of them: came back different
  SkippedRecords skipped;   // records left out
};

struct Journal {
  Json request;                  // settings and digests of the inputs
  std::string tokenizer_digest;  // of the staged tokenizer.model
  InputCounts input;
  SplitState train;
  SplitState validation;
  double seconds = 0;  // of work

  Json to_json() const;
  /// Nothing when `json` is no journal of this version of the program.
  static std::optional<Journal> from_json(const Json& json);
};

}  // namespace osdn::data::detail
