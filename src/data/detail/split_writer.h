// One side of the split while it is written: shard after shard, each filled up to a number of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/detail/journal.h"
#include "data/detail/publish.h"
#include "data/shard.h"

namespace osdn::data::detail {

class SplitWriter {
 public:
  /// Continues after `state`, whose files lie in `folder`; from the start with an empty one.
  SplitWriter(std::string name, const OutputFolder& folder, ShardMeta meta, int64_t shard_tokens,
              const SplitState& state);

  void add(const std::vector<int32_t>& tokens, int64_t text_bytes);
  /// Finishes the last shard.
  void close();

  /// Puts everything on the medium and says how far it has come.
  SplitState sync();
  /// Whether a shard was closed since the last sync.
  bool has_closed() const { return unforgotten_ < state_.closed_shards; }
  /// Removes what closed shards were made of. After the state that sync gave is in the journal.
  void remove_parts();

  const SplitState& state() const { return state_; }
  /// Names of the closed shards.
  std::vector<std::string> files() const;

 private:
  std::string file_name(int64_t shard) const;

  std::string name_;
  const OutputFolder& folder_;
  ShardMeta meta_;
  int64_t shard_tokens_;
  SplitState state_;
  int64_t unforgotten_ = 0;  // first closed shard whose parts may still be there
  std::unique_ptr<ShardWriter> writer_;
};

}  // namespace osdn::data::detail
