#include "data/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <exception>
#include <functional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "data/detail/division.h"
#include "data/detail/sentencepiece_check.h"
#include "data/detail/sentencepiece_model.h"

// libsentencepiece and LibTorch's libc10 export a variable of this name each, an object of 32 bytes and an
// int. Without a definition in the program the dynamic linker gives both of them the int, and sentencepiece's
// constructor writes over the settings of c10 that lie behind it; one of those makes LibTorch abort where it
// would throw. This one is large enough for either; c10 does not read it (scripts/check_symbols.sh finds such
// pairs). NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
alignas(64) unsigned char FLAGS_minloglevel[64] = {};

namespace osdn::data {
namespace tokenizer_detail {

constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";  // U+2581, sentencepiece's space
constexpr size_t kCacheEntries = 1 << 16;                  // a thread
constexpr size_t kCachedSegmentBytes = 64;                 // longer segments rarely come again
constexpr size_t kWindowBytes = 16 << 10;                  // of a segment without any place to cut
constexpr size_t kMaxPieceBytes = 4096;                    // sentencepiece_fault allows no longer ones
constexpr size_t kMaxUnigramBytes = 1 << 20;               // of such a segment of an own unigram model
constexpr size_t kMaxUndividedBytes = 8 << 20;             // the library takes 87 bytes for each

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

/// A symbol of an encoded text, with its place there in bytes.
struct Unit {
  size_t begin = 0;
  size_t end = 0;
  std::vector<int32_t> ids;  // several for a character in byte pieces
};

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
  sentencepiece::SentencePieceProcessor processor;  // the model as it is
  // The same with the other dummy prefix, where parts of a text need it.
  std::unique_ptr<sentencepiece::SentencePieceProcessor> inner;
  std::vector<std::string> piece_bytes;    // by id
  std::array<int32_t, 256> byte_ids = {};  // of the byte pieces; -1 where there is none
  detail::Division division;
  bool dummy_prefix = false;  // the library puts a space before everything it encodes
  bool bpe = false;
  bool text_reaches_control_ids = false;
  uint64_t owner = tokenizer_detail::next_owner();

  void inspect(const detail::SentencepieceModel& model, const std::string& origin);
  void encode_with(const sentencepiece::SentencePieceProcessor& library, std::string_view text,
                   std::vector<int32_t>* ids) const;
  void encode_whole(std::string_view text, std::vector<int32_t>* ids) const;
  void encode_cached(std::string_view segment, std::vector<int32_t>* ids) const;
  void encode_long_segment(std::string_view segment, std::vector<int32_t>* ids) const;
  void encode_words(std::string_view text, std::vector<int32_t>* ids) const;
  void encode_lossless(std::string_view text, std::vector<int32_t>* ids) const;
  std::vector<tokenizer_detail::Unit> units_of(std::string_view text) const;
  bool stay_apart(std::string_view text, const tokenizer_detail::Unit& left,
                  const tokenizer_detail::Unit& right) const;
};

void Tokenizer::Impl::inspect(const detail::SentencepieceModel& model, const std::string& origin) {
  byte_ids.fill(-1);
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
    bytes = tokenizer_detail::replace_markers(text);
  }
  for (const int id : {processor.bos_id(), processor.eos_id(), processor.pad_id()})
    if (id >= static_cast<int>(model.pieces.size()))
      throw DataError("{}: a control piece has id {}, the vocabulary has {} pieces", origin, id,
                      model.pieces.size());
  division = detail::Division(model);
  dummy_prefix = model.add_dummy_prefix;
  bpe = model.type == detail::ModelType::kBpe;
  // Of words, the space is ours to put; after a cut at a space, the library puts it back.
  const bool wanted = division.kind() == detail::Division::Kind::kSpaces;
  if (division.kind() == detail::Division::Kind::kNever || dummy_prefix == wanted) return;
  inner = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = inner->LoadFromSerializedProto(detail::with_dummy_prefix(model_bytes, wanted));
  if (!status.ok()) throw DataError("{}: sentencepiece refuses the model: {}", origin, status.ToString());
}

void Tokenizer::Impl::encode_with(const sentencepiece::SentencePieceProcessor& library, std::string_view text,
                                  std::vector<int32_t>* ids) const {
  std::vector<int> encoded;
  const auto status = library.Encode(text, &encoded);
  if (!status.ok())
    throw DataError("tokenizer: the model cannot encode {} bytes: {}", text.size(), status.ToString());
  ids->insert(ids->end(), encoded.begin(), encoded.end());
}

/// A part of a text: nothing is put before it in words, a space after a cut at one.
void Tokenizer::Impl::encode_whole(std::string_view text, std::vector<int32_t>* ids) const {
  encode_with(inner ? *inner : processor, text, ids);
}

void Tokenizer::Impl::encode_cached(std::string_view segment, std::vector<int32_t>* ids) const {
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

/// The symbols that the text ends as: pieces, and characters that become several byte pieces.
std::vector<tokenizer_detail::Unit> Tokenizer::Impl::units_of(std::string_view text) const {
  std::vector<tokenizer_detail::Unit> units;
  const auto encoded = (inner ? *inner : processor).EncodeAsImmutableProto(text);
  std::vector<int32_t> ids;
  for (const auto& piece : encoded.pieces()) {
    ids.push_back(static_cast<int32_t>(piece.id()));
    if (piece.end() == piece.begin()) continue;  // all but the last byte piece of a character
    units.push_back({.begin = piece.begin(), .end = piece.end(), .ids = std::move(ids)});
    ids.clear();
  }
  OSDN_ASSERT(ids.empty() && !units.empty() && units.back().end == text.size(),
              "tokenizer: pieces of a text of {} bytes do not cover it", text.size());
  return units;
}

/// Whether two neighbouring units of `text` are what their text by itself encodes to.
bool Tokenizer::Impl::stay_apart(std::string_view text, const tokenizer_detail::Unit& left,
                                 const tokenizer_detail::Unit& right) const {
  std::vector<int32_t> both;
  encode_whole(text.substr(left.begin, right.end - left.begin), &both);
  return both.size() == left.ids.size() + right.ids.size() &&
         std::equal(left.ids.begin(), left.ids.end(), both.begin()) &&
         std::equal(right.ids.begin(), right.ids.end(), both.end() - static_cast<int64_t>(right.ids.size()));
}

/// A segment without a place to cut, in windows. Merges left and right of a position do not know of each
/// other until one spans it, and the first that would also shows when just the two pieces that meet there are
/// encoded together. So BPE ids of two sides that stay apart by this test are the ids of the whole.
void Tokenizer::Impl::encode_long_segment(std::string_view segment, std::vector<int32_t>* ids) const {
  using tokenizer_detail::Unit;
  const auto append = [&](const Unit& unit) { ids->insert(ids->end(), unit.ids.begin(), unit.ids.end()); };
  size_t begin = 0;  // of the window
  size_t window_bytes = tokenizer_detail::kWindowBytes;
  std::vector<Unit> units;
  while (true) {
    const std::string_view window =
        segment.substr(begin, whole_characters(segment.substr(begin), window_bytes));
    if (units.empty()) units = units_of(window);
    if (begin + window.size() == segment.size()) break;
    // Pieces near the end may change with what follows; nearly always the last of the others ends at a place
    // to cut.
    size_t last = units.size() - 1;
    while (last > 0 && units[last].begin + tokenizer_detail::kMaxPieceBytes > window.size()) --last;
    bool found = false;
    for (size_t i = last; i > 0 && i + 16 > last && !found; --i) {
      const size_t cut = begin + units[i].begin;
      std::vector<Unit> next =
          units_of(segment.substr(cut, whole_characters(segment.substr(cut), window_bytes)));
      const Unit right{.begin = units[i].begin, .end = units[i].begin + next[0].end, .ids = next[0].ids};
      found = stay_apart(segment.substr(begin), units[i - 1], right);
      if (!found) continue;
      for (size_t k = 0; k < i; ++k) append(units[k]);
      units = std::move(next);
      begin = cut;
    }
    if (found) continue;
    window_bytes *= 2;
    units.clear();
  }
  for (const Unit& unit : units) append(unit);
}

void Tokenizer::Impl::encode_words(std::string_view text, std::vector<int32_t>* ids) const {
  while (!text.empty()) {
    std::string_view segment = text.substr(0, division.segment_size(text));
    text.remove_prefix(segment.size());
    if (segment.size() <= tokenizer_detail::kCachedSegmentBytes) {
      encode_cached(segment, ids);
    } else if (segment.size() <= tokenizer_detail::kWindowBytes) {
      encode_whole(segment, ids);
    } else if (bpe) {
      encode_long_segment(segment, ids);
    } else {
      for (; !segment.empty();) {
        const size_t size = whole_characters(segment, tokenizer_detail::kMaxUnigramBytes);
        encode_whole(segment.substr(0, size), ids);
        segment.remove_prefix(size);
      }
    }
  }
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
    encode_words(text.substr(begin, special - begin), ids);
    for (size_t i = 0; i < size; ++i) ids->push_back(byte_ids[static_cast<unsigned char>(text[special + i])]);
    begin = special + size;
  }
}

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string& path) { return parse(read_named_file(path), path); }
Tokenizer Tokenizer::from_model(std::string model_bytes) {
  return parse(std::move(model_bytes), "tokenizer model");
}

Tokenizer Tokenizer::parse(std::string model_bytes, const std::string& origin) {
  if (const std::string fault = detail::sentencepiece_fault(model_bytes); !fault.empty())
    throw DataError(
        "{}: expected a sentencepiece model, found {} bytes of something else or a damaged one: {} (make a "
        "new "
        "one with `osdn tokenizer train`, or copy it again)",
        origin, model_bytes.size(), fault);
  const detail::SentencepieceModel model = detail::parse_sentencepiece_model(model_bytes, origin);
  Tokenizer tokenizer;
  Impl& impl = *tokenizer.impl_;
  std::string refusal;
  try {
    if (const auto status = impl.processor.LoadFromSerializedProto(model_bytes); !status.ok())
      refusal = status.ToString();
  } catch (const std::exception& failure) {  // of the library's trie
    refusal = failure.what();
  }
  if (!refusal.empty()) throw DataError("{}: sentencepiece refuses the model: {}", origin, refusal);
  impl.digest = osdn::digest(model_bytes).hex();
  impl.model_bytes = std::move(model_bytes);
  impl.inspect(model, origin);
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  const size_t invalid = first_invalid_utf8(text);
  if (invalid != std::string_view::npos)
    throw UserError(
        "text: expected valid UTF-8, found byte 0x{:02X} at offset {} (convert it, e.g. with iconv)",
        static_cast<unsigned char>(text[invalid]), invalid);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  for (const detail::TextPart& part : impl_->division.parts(text)) encode_part(part, &ids);
  return ids;
}

std::vector<detail::TextPart> Tokenizer::parts(std::string_view text) const {
  return impl_->division.parts(text);
}

void Tokenizer::encode_part(const detail::TextPart& part, std::vector<int32_t>* ids) const {
  if (impl_->division.lossless()) {
    impl_->encode_lossless(part.text, ids);
  } else if (impl_->division.kind() == detail::Division::Kind::kWords) {
    if (part.first && impl_->dummy_prefix) {
      std::string prefixed(1, ' ');
      impl_->encode_words(prefixed += part.text, ids);
    } else {
      impl_->encode_words(part.text, ids);
    }
  } else {
    if (part.text.size() > tokenizer_detail::kMaxUndividedBytes)
      throw UserError(
          "text: {} bytes without a place where this tokenizer lets it be cut ({}), expected one within {} "
          "(split "
          "the document, or train a tokenizer)",
          part.text.size(),
          impl_->division.kind() == detail::Division::Kind::kNever
              ? "it has none in any text"
              : "a space between visible ASCII characters",
          tokenizer_detail::kMaxUndividedBytes);
    if (part.first) {
      impl_->encode_with(impl_->processor, part.text, ids);
    } else {
      impl_->encode_whole(part.text, ids);
    }
  }
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids) const {
  for (const int32_t id : ids)
    if (id < 0 || id >= vocab_size())
      throw UserError("tokenizer: expected ids from 0 to {}, got {}", vocab_size() - 1, id);
  std::string text;
  if (impl_->division.lossless()) {
    for (const int32_t id : ids) text += impl_->piece_bytes[static_cast<size_t>(id)];
    return text;
  }
  const auto status = impl_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
  if (!status.ok())
    throw DataError("tokenizer: the model cannot decode {} ids: {}", ids.size(), status.ToString());
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
bool Tokenizer::lossless() const { return impl_->division.lossless(); }
const std::string& Tokenizer::losses() const { return impl_->division.losses(); }
bool Tokenizer::text_reaches_control_ids() const { return impl_->text_reaches_control_ids; }
std::string Tokenizer::digest() const { return impl_->digest; }
const std::string& Tokenizer::model_bytes() const { return impl_->model_bytes; }

}  // namespace osdn::data
