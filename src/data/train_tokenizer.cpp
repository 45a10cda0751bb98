#include "data/train_tokenizer.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

namespace osdn::data {
namespace train_tokenizer_detail {

// The trainer skips long lines, and lines of 65,536 characters break an assertion of it.
constexpr size_t kStretchBytes = 4096;
constexpr uint64_t kRankSeed = 0x05D4;
// Text without a space must still give a piece for it. The trainer ends the process when a required character
// does not occur, and when no two characters can be joined: one stretch with both prevents it.
constexpr const char* kRequiredCharacters =
    "\xE2\x96\x81"
    "a";
constexpr const char* kRequiredStretch = " a";

/// Characters that the trainer reserves: its space (U+2581) and unknown (U+2585) markers and NUL. They reach
/// text as byte pieces.
size_t reserved_length(std::string_view text) {
  if (text.front() == '\0') return 1;
  if (text.front() != '\xE2') return 0;
  return text.substr(0, 3) == "\xE2\x96\x81" || text.substr(0, 3) == "\xE2\x96\x85" ? 3 : 0;
}

/// Length of the first stretch of `text`: to the last space within the limit, else to the last whole
/// character.
size_t stretch_length(std::string_view text) {
  if (text.size() <= kStretchBytes) return text.size();
  const size_t space = text.rfind(' ', kStretchBytes);
  if (space != std::string_view::npos && space > 0) return space;
  size_t length = kStretchBytes;
  while (length > 1 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;
  return length;
}

class StretchIterator : public sentencepiece::SentenceIterator {
 public:
  explicit StretchIterator(const std::vector<TrainingStretch>& stretches) : stretches_(stretches) {}
  bool done() const override { return position_ == stretches_.size(); }
  void Next() override { ++position_; }
  const std::string& value() const override { return stretches_[position_].text; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<TrainingStretch>& stretches_;
  size_t position_ = 0;
};

/// The number after `words` in a message of the library; -1 when it says something else.
int64_t number_after(const std::string& message, const std::string& words) {
  const size_t found = message.find(words);
  if (found == std::string::npos) return -1;
  const size_t digits = message.find_first_of("0123456789", found + words.size());
  if (digits == std::string::npos) return -1;
  return std::strtoll(message.c_str() + digits, nullptr, 10);
}

[[noreturn]] void report_failure(const std::string& message, const config::TrainTokenizer& settings) {
  if (const int64_t largest = number_after(message, "value <="); largest >= 0)
    throw UserError(
        "prepare.tokenizer.vocab_size: {} is too large for this text, which gives at most {} (lower it to "
        "{} or less, or add text)",
        settings.vocab_size, largest, largest);
  if (message.find("smaller than required_chars") != std::string::npos) {
    const int64_t required = number_after(message, " vs ");
    throw UserError(
        "prepare.tokenizer.vocab_size: {} is too small: the text's characters, the 256 bytes and the 3 "
        "special pieces take {} (raise it to {} or more)",
        settings.vocab_size, required, required);
  }
  throw UserError("prepare.tokenizer: sentencepiece cannot train a vocabulary of {} on this text: {}",
                  settings.vocab_size, message);
}

}  // namespace train_tokenizer_detail

std::vector<TrainingStretch> TrainingSample::cut(std::string_view document) const {
  std::vector<TrainingStretch> stretches;
  const uint64_t largest = largest_rank_.load(std::memory_order_relaxed);
  const auto keep = [&](std::string_view text) {
    while (!text.empty()) {
      const std::string_view stretch = text.substr(0, train_tokenizer_detail::stretch_length(text));
      text.remove_prefix(stretch.size());
      const uint64_t rank = hash64(stretch, train_tokenizer_detail::kRankSeed);
      if (rank <= largest) stretches.push_back({.rank = rank, .text = std::string(stretch)});
    }
  };
  size_t begin = 0;
  for (size_t i = 0; i < document.size();) {
    const size_t reserved = train_tokenizer_detail::reserved_length(document.substr(i));
    if (reserved > 0) {
      keep(document.substr(begin, i - begin));
      begin = i + reserved;
    }
    i += std::max<size_t>(reserved, 1);
  }
  keep(document.substr(begin));
  return stretches;
}

void TrainingSample::add(std::vector<TrainingStretch> stretches) {
  for (TrainingStretch& stretch : stretches) {
    size_bytes_ += stretch.text.size();
    heap_.push_back(std::move(stretch));
    std::push_heap(heap_.begin(), heap_.end());
    while (size_bytes_ > limit_bytes_ && heap_.size() > 1) {
      std::pop_heap(heap_.begin(), heap_.end());
      size_bytes_ -= heap_.back().text.size();
      heap_.pop_back();
      largest_rank_.store(heap_.front().rank, std::memory_order_relaxed);
    }
  }
}

std::vector<TrainingStretch> TrainingSample::sorted() const {
  std::vector<TrainingStretch> stretches = heap_;
  std::sort(stretches.begin(), stretches.end());
  return stretches;
}

void check_vocabulary_size(int64_t vocab_size) {
  // With fewer the library ends the process instead of answering.
  constexpr int64_t kSmallestVocabulary = 3 + 256 + 1;
  if (vocab_size < kSmallestVocabulary)
    throw UserError(
        "prepare.tokenizer.vocab_size: expected at least {} (256 bytes, 3 special pieces, text), got {}",
        kSmallestVocabulary, vocab_size);
}

Tokenizer train_tokenizer(const TrainingSample& sample, const config::TrainTokenizer& settings) {
  std::vector<TrainingStretch> stretches = sample.sorted();
  if (stretches.empty())
    throw UserError("prepare.tokenizer: expected text to train on, found none (is every document empty?)");
  stretches.push_back({.rank = 0, .text = train_tokenizer_detail::kRequiredStretch});
  check_vocabulary_size(settings.vocab_size);
  const std::unordered_map<std::string, std::string> arguments = {
      {"model_type", settings.type == config::TokenizerType::kBpe ? "bpe" : "unigram"},
      {"vocab_size", std::to_string(settings.vocab_size)},
      {"byte_fallback", "true"},
      {"character_coverage", "0.9995"},
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},  // a run of spaces is one token: indented code stays short
      {"split_digits", "true"},
      {"required_chars", train_tokenizer_detail::kRequiredCharacters},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"max_sentence_length", std::to_string(4 * train_tokenizer_detail::kStretchBytes)},
      {"input_sentence_size", "0"},
      {"shuffle_input_sentence", "false"},
      {"num_threads", "2"},  // fixed: unigram sums its counts thread by thread
      {"minloglevel", "2"},
  };
  train_tokenizer_detail::StretchIterator iterator(stretches);
  std::string model;
  sentencepiece::SetRandomGeneratorSeed(0);
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &iterator, &model);
  if (!status.ok()) train_tokenizer_detail::report_failure(status.ToString(), settings);
  return Tokenizer::from_model(std::move(model));
}

}  // namespace osdn::data
