#include "data/detail/split_writer.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace osdn::data::detail {

SplitWriter::SplitWriter(std::string name, const OutputFolder& folder, ShardMeta meta, int64_t shard_tokens,
                         const SplitState& state)
    : name_(std::move(name)),
      folder_(folder),
      meta_(std::move(meta)),
      shard_tokens_(shard_tokens),
      state_(state) {
  if (state_.open)
    writer_ =
        std::make_unique<ShardWriter>(folder_.staged(file_name(state_.closed_shards)), meta_, *state_.open);
}

std::string SplitWriter::file_name(int64_t shard) const { return fmt::format("{}-{:05d}.h5", name_, shard); }

std::vector<std::string> SplitWriter::files() const {
  std::vector<std::string> names;
  for (int64_t shard = 0; shard < state_.closed_shards; ++shard) names.push_back(file_name(shard));
  return names;
}

void SplitWriter::add(const std::vector<int32_t>& tokens, int64_t text_bytes) {
  const auto size = static_cast<int64_t>(tokens.size());
  if (writer_ && writer_->position().tokens + size > shard_tokens_) close();
  if (!writer_) {
    if (state_.closed_shards == 100'000)
      throw UserError("prepare.shard_tokens: {} gives more than 100000 shards", shard_tokens_);
    // Continues from nothing, so that a shard which an interrupted process finished after its last entry in
    // the journal is recognised.
    writer_ = std::make_unique<ShardWriter>(folder_.staged(file_name(state_.closed_shards)), meta_,
                                            ShardPosition{});
  }
  writer_->add_document(tokens, text_bytes);
  ++state_.documents;
  state_.tokens += size;
  state_.bytes += text_bytes;
}

void SplitWriter::close() {
  if (!writer_) return;
  writer_->finish();
  writer_.reset();
  ++state_.closed_shards;
}

SplitState SplitWriter::sync() {
  state_.open.reset();
  if (writer_) {
    writer_->sync();
    state_.open = writer_->position();
  }
  return state_;
}

void SplitWriter::remove_parts() {
  for (; unforgotten_ < state_.closed_shards; ++unforgotten_)
    ShardWriter::remove_parts(folder_.staged(file_name(unforgotten_)));
}

}  // namespace osdn::data::detail
