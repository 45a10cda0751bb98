#include "data/detail/encode_documents.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "data/detail/division.h"

namespace osdn::data::detail {
namespace encode_documents_detail {

constexpr uint64_t kSplitSeed = 0x5911;         // of the hash that sends a document to validation
constexpr uint64_t kCheckEvery = 64;            // documents, by hash
constexpr size_t kLongDocumentBytes = 1 << 20;  // from here on several threads encode one document

/// Appends the ids of one text, with all threads that have nothing else to do when it is long.
void encode_text(const Tokenizer& tokenizer, const std::string& text, WorkerPool* pool,
                 std::vector<int32_t>* ids) {
  if (text.size() < kLongDocumentBytes) {
    const std::vector<int32_t> encoded = tokenizer.encode(text);
    ids->reserve(encoded.size() + 2);  // bos and eos stand around them
    ids->insert(ids->end(), encoded.begin(), encoded.end());
    return;
  }
  const std::vector<TextPart> parts = tokenizer.parts(text);
  std::vector<std::vector<int32_t>> part_ids(parts.size());
  pool->for_each(static_cast<int64_t>(parts.size()), [&](int64_t part) {
    const auto i = static_cast<size_t>(part);
    tokenizer.encode_part(parts[i], &part_ids[i]);
    part_ids[i].shrink_to_fit();
  });
  size_t total = 2;
  for (const std::vector<int32_t>& part : part_ids) total += part.size();
  ids->reserve(total);
  for (std::vector<int32_t>& part : part_ids) {
    ids->insert(ids->end(), part.begin(), part.end());
    std::vector<int32_t>().swap(part);
  }
}

/// Whether a text comes back from its ids, which stand after a bos; of a long one, the first part.
bool comes_back(const Tokenizer& tokenizer, const std::string& text, const std::vector<int32_t>& tokens) {
  if (text.size() < kLongDocumentBytes) return tokenizer.decode({tokens.begin() + 1, tokens.end()}) == text;
  const TextPart first = tokenizer.parts(text).front();
  const std::string_view part = first.text.substr(0, whole_characters(first.text, kLongDocumentBytes));
  return tokenizer.decode(tokenizer.encode(part)) == part;
}

}  // namespace encode_documents_detail

bool read_stretch(InputReader* reader, uint64_t* digest, Stretch* stretch) {
  if (!reader->next(&stretch->raw)) return false;
  const RawDocuments& raw = stretch->raw;
  *digest = hash64(raw.bytes, hash64(fmt::format("{}:{}", raw.origin, raw.first_line), *digest));
  stretch->digest = *digest;
  return true;
}

double split_place(const std::string& text) {
  return static_cast<double>(hash64(text, encode_documents_detail::kSplitSeed) >> 11) * 0x1.0p-53;
}

EncodedBatch encode_documents(Stretch&& stretch, const config::Prepare& settings, const Tokenizer& tokenizer,
                              double validation_limit, WorkerPool* pool) {
  RawDocuments raw = std::move(stretch.raw);
  EncodedBatch batch;
  batch.input_bytes = raw.input_bytes;
  batch.digest = stretch.digest;
  SplitDocuments split = split_documents(raw, settings);
  std::string().swap(raw.bytes);  // large ones should not wait here twice
  batch.skipped = std::move(split.skipped);
  for (std::string& text : split.texts) {
    if (is_empty_document(text)) {
      ++batch.dropped;
      continue;
    }
    EncodedDocument document;
    document.bytes = static_cast<int64_t>(text.size());
    document.validation = split_place(text) < validation_limit;
    batch.text_bytes += document.bytes;
    document.tokens.push_back(tokenizer.bos_id());
    try {
      encode_documents_detail::encode_text(tokenizer, text, pool, &document.tokens);
    } catch (const UserError& failure) {
      throw UserError("{}: {}", raw.origin, failure.what());
    }
    if (hash64(text, 0) % encode_documents_detail::kCheckEvery == 0) {
      ++batch.checked;
      if (!encode_documents_detail::comes_back(tokenizer, text, document.tokens)) ++batch.changed;
      OSDN_ASSERT(batch.changed == 0 || !tokenizer.lossless(),
                  "{}: a document does not come back from its tokens", raw.origin);
    }
    std::string().swap(text);
    if (settings.add_eos) document.tokens.push_back(tokenizer.eos_id());
    batch.documents.push_back(std::move(document));
  }
  return batch;
}

}  // namespace osdn::data::detail
