// Perplexity of documents: every token but bos is scored exactly once, the state starts afresh at every
// document. Token, word and byte perplexity are different numbers and never share a name
// (docs/howto/evaluate.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/lm.h"
#include "tensor/fwd.h"

namespace osdn::eval {

/// What is scored. `tokens` begins with bos, or with whatever stands for it: the first is context only.
struct EvalDocument {
  std::string name;  // where it came from, for people
  std::vector<int32_t> tokens;
  int64_t text_bytes = 0;            // of the original text
  std::optional<int64_t> num_words;  // unknown without the text
};

struct PerplexityOptions {
  int64_t window = 0;             // tokens of context at most; 0: the whole document, the state carried
  int64_t stride = 0;             // newly scored targets a window (plan_windows)
  int64_t tokens_at_once = 8192;  // run through the model together: changes speed and memory, no result
  int64_t training_length = 0;    // bounds of the position buckets double and halve from here
};

struct DocumentScore {
  std::string name;
  int64_t num_tokens = 0;  // scored
  std::optional<int64_t> num_words;
  int64_t text_bytes = 0;
  double negative_log_likelihood = 0;  // natural log, sum over the scored tokens
};

/// Sums over documents.
struct PerplexityTotals {
  int64_t num_documents = 0;
  int64_t num_empty = 0;  // documents without a target: they contribute nothing
  int64_t num_tokens = 0;
  std::optional<int64_t> num_words = 0;  // unknown as soon as one document's is
  int64_t text_bytes = 0;
  double negative_log_likelihood = 0;

  double loss() const;                            // mean over tokens, nats
  double token_perplexity() const;                // exp(sum / tokens)
  std::optional<double> word_perplexity() const;  // exp(sum / words)
  double byte_perplexity() const;                 // exp(sum / bytes)
  double bits_per_byte() const;                   // sum / (ln 2 * bytes)
};

/// Targets by position in their document: the token after bos has position 1.
struct PositionBucket {
  int64_t from = 0;
  int64_t to = 0;  // inclusive
  int64_t num_tokens = 0;
  double negative_log_likelihood = 0;
};

struct PerplexityResult {
  PerplexityTotals totals;
  std::vector<PositionBucket> buckets;   // up to the last one with a token
  std::vector<DocumentScore> documents;  // in the order of add()
};

class Perplexity {
 public:
  Perplexity(const model::LanguageModel& model, at::Device device, const PerplexityOptions& options);
  ~Perplexity();
  Perplexity(const Perplexity&) = delete;
  Perplexity& operator=(const Perplexity&) = delete;

  /// Documents are scored when a batch is full. Throws UserError for a token outside the vocabulary,
  /// DataError for a loss that is not finite.
  void add(const EvalDocument& document);
  /// Scores what waits. Call once.
  PerplexityResult finish();
  /// Tokens scored so far, and their mean loss; less than what was added, while a batch fills.
  int64_t tokens_so_far() const;
  double loss_so_far() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace osdn::eval
