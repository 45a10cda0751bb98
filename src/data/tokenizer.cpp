#include "data/tokenizer.h"

#include <sentencepiece_processor.h>

#include <array>
#include <atomic>
#include <charconv>
#include <functional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "data/detail/adjacency.h"
#include "data/detail/sentencepiece_model.h"
#include "data/detail/utf8.h"

namespace osdn::data {
namespace tokenizer_detail {

constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";  // U+2581, sentencepiece's space
constexpr size_t kMaxPieceBytes = 64 << 10;                // of text handed to the library at once
constexpr size_t kLongSegmentBytes =
    64;  // from here on a segment ends at any safe place, not only at whitespace
constexpr size_t kCacheEntries = 1 << 16;   // a thread
constexpr size_t kCachedSegmentBytes = 64;  // longer segments rarely come again

struct ViewHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

/// Segments seen by this thread. One for all tokenizers: a thread works with one at a time.
struct SegmentCache {
  uint64_t owner = 0;
  std::unordered_map<std::string, std::vector<int32_t>, ViewHash, std::equal_to<>> entries;
};

SegmentCache& segment_cache(uint64_t owner) {
  thread_local SegmentCache cache;
  if (cache.owner != owner) {
    cache.entries.clear();
    cache.owner = owner;
  }
  return cache;
}

uint64_t next_owner() {
  static std::atomic<uint64_t> counter{0};
  return ++counter;
}

std::string replace_markers(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    const size_t marker = piece.find(kSpaceMarker);
    text += piece.substr(0, marker);
    if (marker == std::string_view::npos) break;
    text += ' ';
    piece.remove_prefix(marker + kSpaceMarker.size());
  }
  return text;
}

int byte_of_piece(std::string_view piece) {  // "<0x0A>" -> 10; -1 for anything else
  int byte = 0;
  const bool shaped = piece.size() == 6 && piece.substr(0, 3) == "<0x" && piece.back() == '>';
  if (!shaped) return -1;
  const auto [end, failure] = std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
  return failure == std::errc() && end == piece.data() + 5 ? byte : -1;
}

}  // namespace tokenizer_detail

struct Tokenizer::Impl {
  std::string model_bytes;
  std::string digest;
  sentencepiece::SentencePieceProcessor processor;
  std::vector<std::string> piece_bytes;    // by id
  std::array<int32_t, 256> byte_ids = {};  // of the byte pieces; -1 where there is none
  detail::Adjacency adjacency;
  bool divisible = false;     // a text may be cut where no piece joins the two characters
  bool word_by_word = false;  // short segments, remembered: exact for BPE, and how own models are defined
  bool dummy_prefix = false;  // the library puts a space before everything it encodes
  bool lossless = false;
  bool text_reaches_control_ids = false;
  uint64_t owner = tokenizer_detail::next_owner();

  void inspect(const detail::SentencepieceModel& model);
  void encode_whole(std::string_view text, std::vector<int32_t>* ids) const;
  void encode_segment(std::string_view segment, std::vector<int32_t>* ids) const;
  size_t segment_size(std::string_view text) const;
  void encode_divided(std::string_view text, std::vector<int32_t>* ids) const;
  void encode_lossless(std::string_view text, std::vector<int32_t>* ids) const;
};

void Tokenizer::Impl::inspect(const detail::SentencepieceModel& model) {
  byte_ids.fill(-1);
  bool has_space_piece = false;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& [text, type] = model.pieces[id];
    std::string& bytes = piece_bytes.emplace_back();
    switch (type) {
      case detail::PieceType::kControl:
        continue;
      case detail::PieceType::kUnknown:
        bytes = " \xE2\x81\x87 ";
        continue;
      case detail::PieceType::kByte: {
        const int byte = tokenizer_detail::byte_of_piece(text);
        if (byte < 0) continue;
        bytes.assign(1, static_cast<char>(byte));
        byte_ids[static_cast<size_t>(byte)] = static_cast<int32_t>(id);
        continue;
      }
      case detail::PieceType::kUserDefined: {
        const auto number = static_cast<int>(id);
        if (number == processor.bos_id() || number == processor.eos_id() || number == processor.pad_id() ||
            text == "<s>" || text == "</s>" || text == "<pad>")
          text_reaches_control_ids = true;
        break;
      }
      default:
        break;
    }
    has_space_piece = has_space_piece || text == tokenizer_detail::kSpaceMarker;
    bytes = tokenizer_detail::replace_markers(text);
    adjacency.add_piece(text);
  }
  const bool known_type = model.type == detail::ModelType::kBpe || model.type == detail::ModelType::kUnigram;
  bool all_bytes = model.byte_fallback;
  for (const int32_t id : byte_ids) all_bytes = all_bytes && id >= 0;
  // Without byte pieces the library joins neighbouring unknown characters into one id, also across a cut.
  divisible = known_type && all_bytes && model.identity_normalization && !model.remove_extra_whitespaces &&
              model.escape_whitespaces && !model.treat_whitespace_as_suffix;
  dummy_prefix = model.add_dummy_prefix;
  lossless = divisible && !dummy_prefix && has_space_piece;
  // The library adds a unigram path's scores up in float32 from the start of the text, so its choice among
  // near ties depends on all that came before. Own models are defined word by word; for foreign ones the
  // library's word counts.
  word_by_word = divisible && (lossless || model.type == detail::ModelType::kBpe);
}

void Tokenizer::Impl::encode_whole(std::string_view text, std::vector<int32_t>* ids) const {
  std::vector<int> encoded;
  const auto status = processor.Encode(text, &encoded);
  if (!status.ok())
    throw InternalError("tokenizer: cannot encode {} bytes: {}", text.size(), status.ToString());
  ids->insert(ids->end(), encoded.begin(), encoded.end());
}

void Tokenizer::Impl::encode_segment(std::string_view segment, std::vector<int32_t>* ids) const {
  if (segment.size() > tokenizer_detail::kCachedSegmentBytes) {
    encode_whole(segment, ids);
    return;
  }
  auto& entries = tokenizer_detail::segment_cache(owner).entries;
  auto found = entries.find(segment);
  if (found == entries.end()) {
    if (entries.size() >= tokenizer_detail::kCacheEntries) entries.clear();
    std::vector<int32_t> encoded;
    encode_whole(segment, &encoded);
    found = entries.emplace(std::string(segment), std::move(encoded)).first;
  }
  ids->insert(ids->end(), found->second.begin(), found->second.end());
}

/// Bytes up to the next safe cut that is also a good one: before a space, after a newline, or anywhere once
/// it is long.
size_t Tokenizer::Impl::segment_size(std::string_view text) const {
  size_t position = 0;
  char32_t left = detail::utf8_code_point(text, &position);
  while (position < text.size()) {
    size_t length = 0;
    const char32_t right = detail::utf8_code_point(text.substr(position), &length);
    bool cut =
        (right == U' ' && left != U' ') || left == U'\n' || position >= tokenizer_detail::kLongSegmentBytes;
    // With a dummy prefix only a space can be cut away, because the library puts it back, unless nothing
    // follows.
    if (dummy_prefix) cut = right == U' ' && left != U' ' && position + 1 < text.size();
    if (cut && !adjacency.joined(left, right)) return position;
    left = right;
    position += length;
  }
  return text.size();
}

void Tokenizer::Impl::encode_divided(std::string_view text, std::vector<int32_t>* ids) const {
  size_t begin = 0;  // of what is not encoded yet
  size_t end = 0;    // of the segments gathered since
  const auto flush = [&](auto encode) {
    size_t from = begin;
    if (dummy_prefix && begin > 0) ++from;
    encode(text.substr(from, end - from));
    begin = end;
  };
  while (end < text.size()) {
    const size_t size = segment_size(text.substr(end));
    if (word_by_word) {
      end += size;
      flush([&](std::string_view segment) { encode_segment(segment, ids); });
      continue;
    }
    if (end > begin && end + size - begin > tokenizer_detail::kMaxPieceBytes)
      flush([&](std::string_view piece) { encode_whole(piece, ids); });
    end += size;
  }
  if (end > begin) flush([&](std::string_view piece) { encode_whole(piece, ids); });
}

/// The library takes a written U+2581 for a space, and its trie ends at NUL: both go in as byte pieces.
void Tokenizer::Impl::encode_lossless(std::string_view text, std::vector<int32_t>* ids) const {
  size_t begin = 0;
  while (begin < text.size()) {
    size_t special = begin;
    size_t size = 0;
    for (; special < text.size(); ++special) {
      if (text[special] == '\0') size = 1;
      if (text[special] == '\xE2' && text.substr(special, 3) == tokenizer_detail::kSpaceMarker) size = 3;
      if (size > 0) break;
    }
    if (special > begin) encode_divided(text.substr(begin, special - begin), ids);
    for (size_t i = 0; i < size; ++i) ids->push_back(byte_ids[static_cast<unsigned char>(text[special + i])]);
    begin = special + size;
  }
}

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string& path) { return parse(read_file(path), path); }
Tokenizer Tokenizer::from_model(std::string model_bytes) {
  return parse(std::move(model_bytes), "tokenizer model");
}

Tokenizer Tokenizer::parse(std::string model_bytes, const std::string& origin) {
  const detail::SentencepieceModel model = detail::parse_sentencepiece_model(model_bytes, origin);
  Tokenizer tokenizer;
  Impl& impl = *tokenizer.impl_;
  const auto status = impl.processor.LoadFromSerializedProto(model_bytes);
  if (!status.ok()) throw DataError("{}: sentencepiece refuses the model: {}", origin, status.ToString());
  impl.digest = osdn::digest(model_bytes).hex();
  impl.model_bytes = std::move(model_bytes);
  impl.inspect(model);
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  const size_t invalid = detail::first_invalid_utf8(text);
  if (invalid != std::string_view::npos)
    throw UserError(
        "text: expected valid UTF-8, found byte 0x{:02X} at offset {} (convert it, e.g. with iconv)",
        static_cast<unsigned char>(text[invalid]), invalid);
  std::vector<int32_t> ids;
  if (text.empty()) return ids;
  ids.reserve(text.size() / 3);
  if (impl_->lossless) {
    impl_->encode_lossless(text, &ids);
  } else if (impl_->divisible && (impl_->word_by_word || text.size() > tokenizer_detail::kMaxPieceBytes)) {
    impl_->encode_divided(text, &ids);
  } else {
    impl_->encode_whole(text, &ids);
  }
  return ids;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids) const {
  for (const int32_t id : ids)
    if (id < 0 || id >= vocab_size())
      throw UserError("tokenizer: expected ids from 0 to {}, got {}", vocab_size() - 1, id);
  std::string text;
  if (impl_->lossless) {
    for (const int32_t id : ids) text += impl_->piece_bytes[static_cast<size_t>(id)];
    return text;
  }
  const auto status = impl_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
  if (!status.ok()) throw InternalError("tokenizer: cannot decode {} ids: {}", ids.size(), status.ToString());
  return text;
}

std::string Tokenizer::piece_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size())
    throw UserError("tokenizer: expected an id from 0 to {}, got {}", vocab_size() - 1, id);
  return impl_->piece_bytes[static_cast<size_t>(id)];
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->piece_bytes.size()); }
int32_t Tokenizer::bos_id() const { return impl_->processor.bos_id(); }
int32_t Tokenizer::eos_id() const { return impl_->processor.eos_id(); }
int32_t Tokenizer::unknown_id() const { return impl_->processor.unk_id(); }
int32_t Tokenizer::pad_id() const { return impl_->processor.pad_id(); }
bool Tokenizer::lossless() const { return impl_->lossless; }
bool Tokenizer::text_reaches_control_ids() const { return impl_->text_reaches_control_ids; }
std::string Tokenizer::digest() const { return impl_->digest; }
const std::string& Tokenizer::model_bytes() const { return impl_->model_bytes; }

}  // namespace osdn::data
