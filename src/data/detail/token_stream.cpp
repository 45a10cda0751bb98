#include "data/detail/token_stream.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/fs.h"

namespace osdn::data::detail {

TokenStream::TokenStream(const std::vector<std::string>& globs, const std::string& key) {
  for (const std::string& glob : globs) {
    const std::vector<std::string> paths = glob_paths(glob);
    if (paths.empty()) {
      const std::string full = std::filesystem::absolute(glob).lexically_normal().string();
      throw UserError("{}: expected shards, nothing matches {} ({}make shards with `osdn prepare`)", key,
                      glob, full == glob ? "" : fmt::format("that is {}; ", full));
    }
    for (const std::string& path : paths) {
      shards_.push_back(std::make_unique<ShardReader>(path));
      starts_.push_back(starts_.back() + shards_.back()->num_tokens());
    }
  }
  if (shards_.empty()) throw UserError("{}: expected at least one glob of shards, got an empty list", key);
}

void TokenStream::read(int64_t position, int64_t count, int32_t* out) const {
  auto shard =
      static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin() - 1);
  while (count > 0) {
    const int64_t part = std::min(count, starts_[shard + 1] - position);
    shards_[shard]->read(position - starts_[shard], part, out);
    position += part;
    count -= part;
    out += part;
    ++shard;
  }
}

void TokenStream::sequence_starts(int64_t begin, int64_t end, std::optional<int64_t> max_document_tokens,
                                  std::vector<int64_t>* out) const {
  auto shard =
      static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1);
  for (; shard < shards_.size() && starts_[shard] < end; ++shard) {
    const std::vector<int64_t>& offsets = shards_[shard]->document_offsets();
    const int64_t base = starts_[shard];
    const int64_t first = std::max<int64_t>(begin - base, 0);
    auto document = std::upper_bound(offsets.begin(), offsets.end(), first) - 1;
    for (; document + 1 != offsets.end() && base + *document < end; ++document) {
      const int64_t step = max_document_tokens.value_or(*(document + 1) - *document);
      // The first start of this document that does not lie before the window.
      int64_t start = *document + (std::max<int64_t>(first - *document, 0) + step - 1) / step * step;
      for (; start < *(document + 1) && base + start < end; start += step)
        if (base + start > begin) out->push_back(base + start);
    }
  }
}

int64_t TokenStream::text_bytes() const {
  int64_t bytes = 0;
  for (const auto& shard : shards_) bytes += shard->text_bytes();
  return bytes;
}

void check_tokenizers(const std::vector<const TokenStream*>& streams, int64_t vocab_size) {
  const ShardReader* first = nullptr;
  for (const TokenStream* stream : streams) {
    for (const auto& shard : stream->shards()) {
      if (first == nullptr) first = shard.get();
      if (shard->tokenizer_digest() != first->tokenizer_digest())
        throw UserError(
            "{}: made with tokenizer {}, but {} with {} (shards of one run must share a tokenizer: prepare "
            "them "
            "with the same model)",
            shard->path(), shard->tokenizer_digest(), first->path(), first->tokenizer_digest());
      if (vocab_size > 0 && shard->vocab_size() > vocab_size)
        throw UserError(
            "{}: expected tokens below {}, the model's vocabulary, got a shard for a vocabulary of {} (set "
            "model.vocab_size to {}, or use shards of the model's tokenizer)",
            shard->path(), vocab_size, shard->vocab_size(), shard->vocab_size());
    }
  }
}

}  // namespace osdn::data::detail
