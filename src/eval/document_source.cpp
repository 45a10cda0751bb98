#include "eval/document_source.h"

#include <deque>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "data/documents.h"
#include "data/shard.h"

namespace osdn::eval {
namespace document_source_detail {

/// Bytes of the white space character at the start of `text`, 0 for any other character.
size_t white_space_size(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte == ' ' || (byte >= '\t' && byte <= '\r')) return 1;
  if (byte < 0x80) return 0;
  if (text.substr(0, 2) == "\xC2\x85" || text.substr(0, 2) == "\xC2\xA0") return 2;
  const std::string_view three = text.substr(0, 3);
  if (three.size() < 3) return 0;
  // U+2000 to U+200A, and the rest of the property one by one.
  if (three.substr(0, 2) == "\xE2\x80") {
    const auto last = static_cast<unsigned char>(three[2]);
    return (last >= 0x80 && last <= 0x8A) || last == 0xA8 || last == 0xA9 || last == 0xAF ? 3 : 0;
  }
  return three == "\xE1\x9A\x80" || three == "\xE2\x81\x9F" || three == "\xE3\x80\x80" ? 3 : 0;
}

class ShardDocuments final : public DocumentSource {
 public:
  ShardDocuments(const std::vector<std::string>& globs, const data::Tokenizer* tokenizer, int64_t vocab_size)
      : tokenizer_(tokenizer) {
    for (const std::string& glob : globs) {
      const std::vector<std::string> found = glob_paths(glob);
      if (found.empty()) throw UserError("--data: nothing matches {}", glob);
      for (const std::string& path : found) open(path, vocab_size);
    }
  }

  bool next(EvalDocument* document) override {
    while (shard_ < shards_.size() && index_ == shards_[shard_]->num_documents()) {
      ++shard_;
      index_ = 0;
    }
    if (shard_ == shards_.size()) return false;
    const data::ShardReader& shard = *shards_[shard_];
    const int64_t begin = shard.document_offsets()[static_cast<size_t>(index_)];
    const int64_t end = shard.document_offsets()[static_cast<size_t>(index_) + 1];
    *document = {.name = fmt::format("{}#{}", shard.path(), index_)};
    document->tokens.resize(static_cast<size_t>(end - begin));
    shard.read(begin, end - begin, document->tokens.data());
    document->text_bytes = shard.document_bytes()[static_cast<size_t>(index_)];
    if (tokenizer_ != nullptr) {
      if (tokenizer_->bos_id() >= 0 && !document->tokens.empty() &&
          document->tokens.front() != tokenizer_->bos_id())
        throw DataError("{}: expected documents that begin with bos, id {}; document {} begins with {}",
                        shard.path(), tokenizer_->bos_id(), index_, document->tokens.front());
      document->num_words = count_words(tokenizer_->decode(document->tokens));
    }
    done_ += end - begin;
    ++index_;
    return true;
  }

  const char* unit() const override { return "tokens"; }
  int64_t total_units() const override { return total_; }
  int64_t done_units() const override { return done_; }
  std::vector<std::string> paths() const override {
    std::vector<std::string> paths;
    for (const auto& shard : shards_) paths.push_back(shard->path());
    return paths;
  }
  std::string text_form() const override {
    return std::string(
               "bytes of the documents as `osdn prepare` read them (.txt: LF line ends, no byte order "
               "mark); ") +
           (tokenizer_ == nullptr    ? "words unknown without a tokenizer"
            : tokenizer_->lossless() ? "words of the same text"
                                     : "words of the text decoded from the tokens");
  }
  std::optional<int64_t> num_changed() const override {
    if (tokenizer_ == nullptr || !tokenizer_->lossless()) return std::nullopt;
    return 0;
  }

 private:
  void open(const std::string& path, int64_t vocab_size) {
    shards_.push_back(std::make_unique<data::ShardReader>(path));
    const data::ShardReader& shard = *shards_.back();
    total_ += shard.num_tokens();
    if (shard.vocab_size() > vocab_size)
      throw UserError("{}: expected tokens of a vocabulary of at most {}, the model's, got {}", path,
                      vocab_size, shard.vocab_size());
    if (tokenizer_ != nullptr && shard.tokenizer_digest() != tokenizer_->digest())
      throw UserError(
          "{}: made with the tokenizer of digest {}, the model has the one of digest {}; evaluate shards "
          "that its "
          "own tokenizer made, or the text itself",
          path, shard.tokenizer_digest(), tokenizer_->digest());
  }

  const data::Tokenizer* tokenizer_;
  std::vector<std::unique_ptr<data::ShardReader>> shards_;
  size_t shard_ = 0;
  int64_t index_ = 0;  // of the next document in its shard
  int64_t total_ = 0;  // tokens
  int64_t done_ = 0;
};

class TextDocuments final : public DocumentSource {
 public:
  TextDocuments(const config::Prepare& settings, const data::Tokenizer& tokenizer)
      : settings_(settings), tokenizer_(tokenizer), reader_(open(settings, &paths_)) {}

  bool next(EvalDocument* document) override {
    while (texts_.empty()) {
      done_ += block_bytes_;
      block_bytes_ = 0;
      data::RawDocuments raw;
      if (!reader_.next(&raw)) return false;
      block_bytes_ = raw.input_bytes;
      data::SplitDocuments split = data::split_documents(raw, settings_);
      num_skipped_ += split.skipped.total();
      if (raw.origin != origin_) index_ = 0;
      origin_ = raw.origin;
      for (std::string& text : split.texts)
        if (!data::is_empty_document(text)) texts_.push_back(std::move(text));
    }
    const std::string text = std::move(texts_.front());
    texts_.pop_front();
    *document = {.name = fmt::format("{}#{}", origin_, index_++)};
    document->tokens = tokenizer_.encode(text);
    if (!tokenizer_.lossless() && tokenizer_.decode(document->tokens) != text) ++num_changed_;
    document->tokens.insert(document->tokens.begin(), tokenizer_.bos_id());
    if (settings_.add_eos) document->tokens.push_back(tokenizer_.eos_id());
    document->text_bytes = static_cast<int64_t>(text.size());
    document->num_words = count_words(text);
    return true;
  }

  const char* unit() const override { return "bytes"; }
  int64_t total_units() const override { return reader_.total_bytes(); }
  int64_t done_units() const override { return done_; }
  std::vector<std::string> paths() const override { return paths_; }
  std::string text_form() const override {
    return "bytes and words of the raw documents (.txt: LF line ends, no byte order mark)";
  }
  std::optional<int64_t> num_changed() const override { return num_changed_; }
  int64_t num_skipped() const override { return num_skipped_; }

 private:
  static data::InputReader open(const config::Prepare& settings, std::vector<std::string>* paths) {
    std::vector<data::InputFile> files = data::find_inputs(settings);
    for (const data::InputFile& file : files) paths->push_back(file.path);
    return {settings, std::move(files), 0};
  }

  config::Prepare settings_;
  const data::Tokenizer& tokenizer_;
  std::vector<std::string> paths_;
  data::InputReader reader_;
  std::deque<std::string> texts_;  // of the block that is taken apart
  std::string origin_;
  int64_t index_ = 0;        // of the next document in its file
  int64_t block_bytes_ = 0;  // of the input behind texts_
  int64_t done_ = 0;         // bytes of input
  int64_t num_changed_ = 0;
  int64_t num_skipped_ = 0;
};

}  // namespace document_source_detail

std::unique_ptr<DocumentSource> open_shards(const std::vector<std::string>& globs,
                                            const data::Tokenizer* tokenizer, int64_t vocab_size) {
  return std::make_unique<document_source_detail::ShardDocuments>(globs, tokenizer, vocab_size);
}

std::unique_ptr<DocumentSource> open_texts(const config::Prepare& settings,
                                           const data::Tokenizer& tokenizer) {
  if (tokenizer.bos_id() < 0)
    throw UserError("the tokenizer has no bos piece, which starts every document of an evaluation");
  if (settings.add_eos && tokenizer.eos_id() < 0)
    throw UserError("prepare.add_eos is set, but the tokenizer has no eos piece");
  return std::make_unique<document_source_detail::TextDocuments>(settings, tokenizer);
}

int64_t count_words(std::string_view text) {
  int64_t count = 0;
  bool in_word = false;
  while (!text.empty()) {
    const size_t space = document_source_detail::white_space_size(text);
    if (space == 0 && !in_word) ++count;
    in_word = space == 0;
    // Stepping bytewise through a character is safe: no white space begins with a continuation byte.
    text.remove_prefix(space == 0 ? 1 : space);
  }
  return count;
}

}  // namespace osdn::eval
