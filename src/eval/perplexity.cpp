#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "eval/windows.h"
#include "tensor/torch.h"

namespace osdn::eval {
namespace perplexity_detail {

// Windows longer than a batch are cut at multiples of the ops' chunks, so that a cut changes nothing.
constexpr int64_t kPieceMultiple = 64;

/// A window that waits in a batch.
struct Waiting {
  size_t document = 0;
  Window window;
};

std::vector<int64_t> bucket_ends(int64_t training_length) {
  std::vector<int64_t> ends;
  for (int shift = 4; shift >= 0; --shift)
    if (const int64_t end = training_length >> shift; end > 0 && (ends.empty() || end > ends.back()))
      ends.push_back(end);
  if (ends.empty()) ends.push_back(1);
  return ends;
}

}  // namespace perplexity_detail

double PerplexityTotals::loss() const { return negative_log_likelihood / static_cast<double>(num_tokens); }
double PerplexityTotals::token_perplexity() const { return std::exp(loss()); }
std::optional<double> PerplexityTotals::word_perplexity() const {
  if (!num_words || *num_words == 0) return std::nullopt;
  return std::exp(negative_log_likelihood / static_cast<double>(*num_words));
}
double PerplexityTotals::byte_perplexity() const {
  return std::exp(negative_log_likelihood / static_cast<double>(text_bytes));
}
double PerplexityTotals::bits_per_byte() const {
  return negative_log_likelihood / (std::numbers::ln2 * static_cast<double>(text_bytes));
}

struct Perplexity::Impl {
  const model::LanguageModel& model;
  at::Device device;
  PerplexityOptions options;
  PerplexityResult result;
  std::vector<int64_t> bucket_ends;
  double scored_loss = 0;
  int64_t scored_tokens = 0;

  std::vector<perplexity_detail::Waiting> waiting;
  std::vector<int64_t> inputs;         // [N] tokens of the waiting windows
  std::vector<int64_t> targets;        // [N] the token after each
  std::vector<int64_t> offsets = {0};  // [waiting + 1]

  std::vector<double> losses(int64_t begin, int64_t end, ops::SequencesPtr sequences,
                             model::ModelState* state) const;
  void count(const perplexity_detail::Waiting& item, int64_t target, double loss);
  void run_batch();
  void run_long(const perplexity_detail::Waiting& item);
  void append(const EvalDocument& document, const Window& window);
};

/// Loss of every row of inputs [begin, end): [end - begin].
std::vector<double> Perplexity::Impl::losses(int64_t begin, int64_t end, ops::SequencesPtr sequences,
                                             model::ModelState* state) const {
  const auto tensor = [&](const std::vector<int64_t>& values) {
    const std::vector<int64_t> part(values.begin() + begin, values.begin() + end);
    return at::tensor(part, at::kLong).to(device);
  };
  model::ForwardCall call{.sequences = std::move(sequences), .state = state};
  const at::Tensor rows =
      model.loss_rows(tensor(inputs), tensor(targets), call).to(at::kCPU, at::kDouble).contiguous();
  return {rows.const_data_ptr<double>(), rows.const_data_ptr<double>() + rows.numel()};
}

void Perplexity::Impl::count(const perplexity_detail::Waiting& item, int64_t target, double loss) {
  if (!std::isfinite(loss))
    throw DataError(
        "document {} of the evaluation: the loss of token {} is {}; the weights hold NaN or overflow (`osdn "
        "inspect` "
        "the checkpoint, or try --precision float32)",
        item.document + 1, target + 1, loss);
  result.documents[item.document].negative_log_likelihood += loss;
  scored_loss += loss;
  ++scored_tokens;
  const int64_t position = target + 1;
  size_t bucket = 0;
  while (true) {
    if (bucket == bucket_ends.size()) bucket_ends.push_back(2 * bucket_ends.back());
    if (position <= bucket_ends[bucket]) break;
    ++bucket;
  }
  while (result.buckets.size() <= bucket) {
    const int64_t before = result.buckets.empty() ? 0 : result.buckets.back().to;
    result.buckets.push_back({.from = before + 1, .to = bucket_ends[result.buckets.size()]});
  }
  ++result.buckets[bucket].num_tokens;
  result.buckets[bucket].negative_log_likelihood += loss;
}

void Perplexity::Impl::append(const EvalDocument& document, const Window& window) {
  for (int64_t i = window.begin; i < window.end; ++i) {
    inputs.push_back(document.tokens[static_cast<size_t>(i)]);
    targets.push_back(document.tokens[static_cast<size_t>(i) + 1]);
  }
  offsets.push_back(static_cast<int64_t>(inputs.size()));
  waiting.push_back({.document = result.documents.size() - 1, .window = window});
}

void Perplexity::Impl::run_batch() {
  if (waiting.empty()) return;
  const std::vector<double> rows =
      losses(0, offsets.back(), ops::Sequences::make(offsets, device), /*state=*/nullptr);
  for (size_t i = 0; i < waiting.size(); ++i) {
    const Window& window = waiting[i].window;
    for (int64_t target = window.first; target < window.end; ++target)
      count(waiting[i], target, rows[static_cast<size_t>(offsets[i] + target - window.begin)]);
  }
  waiting.clear();
  inputs.clear();
  targets.clear();
  offsets = {0};
}

/// The one waiting window, longer than a batch: piece by piece, the state carried along.
void Perplexity::Impl::run_long(const perplexity_detail::Waiting& item) {
  model::ModelState state;
  const Window& window = item.window;
  const int64_t piece = std::max(options.tokens_at_once / perplexity_detail::kPieceMultiple, int64_t{1}) *
                        perplexity_detail::kPieceMultiple;
  const int64_t size = window.end - window.begin;
  for (int64_t begin = 0; begin < size; begin += piece) {
    const int64_t end = std::min(begin + piece, size);
    const std::vector<double> rows =
        losses(begin, end, ops::Sequences::equal(1, end - begin, device), &state);
    for (int64_t row = std::max(begin, window.first - window.begin); row < end; ++row)
      count(item, window.begin + row, rows[static_cast<size_t>(row - begin)]);
  }
  waiting.clear();
  inputs.clear();
  targets.clear();
  offsets = {0};
}

Perplexity::Perplexity(const model::LanguageModel& model, at::Device device, const PerplexityOptions& options)
    : impl_(new Impl{.model = model,
                     .device = device,
                     .options = options,
                     .bucket_ends = perplexity_detail::bucket_ends(options.training_length)}) {
  plan_windows(1, options.window, options.stride);  // refuses a stride that does not fit
}
Perplexity::~Perplexity() = default;

void Perplexity::add(const EvalDocument& document) {
  Impl& impl = *impl_;
  for (const int32_t token : document.tokens)
    if (token < 0 || token >= impl.model.vocab_size())
      throw UserError("{}: expected tokens from 0 to {}, the model's vocabulary, got {}", document.name,
                      impl.model.vocab_size() - 1, token);
  PerplexityTotals& totals = impl.result.totals;
  const auto num_targets = std::max<int64_t>(0, static_cast<int64_t>(document.tokens.size()) - 1);
  impl.result.documents.push_back({.name = document.name,
                                   .num_tokens = num_targets,
                                   .num_words = document.num_words,
                                   .text_bytes = document.text_bytes});
  ++totals.num_documents;
  if (num_targets == 0) {
    ++totals.num_empty;
    return;
  }
  totals.num_tokens += num_targets;
  totals.text_bytes += document.text_bytes;
  if (totals.num_words && document.num_words)
    *totals.num_words += *document.num_words;
  else
    totals.num_words.reset();
  for (const Window& window : plan_windows(num_targets, impl.options.window, impl.options.stride)) {
    const int64_t size = window.end - window.begin;
    if (impl.offsets.back() + size > impl.options.tokens_at_once) impl.run_batch();
    impl.append(document, window);
    if (size > impl.options.tokens_at_once) impl.run_long(perplexity_detail::Waiting(impl.waiting.front()));
  }
}

PerplexityResult Perplexity::finish() {
  impl_->run_batch();
  // Summed document by document: the order, and so the bits, do not depend on the batches.
  for (const DocumentScore& score : impl_->result.documents)
    impl_->result.totals.negative_log_likelihood += score.negative_log_likelihood;
  return std::move(impl_->result);
}

int64_t Perplexity::tokens_so_far() const { return impl_->scored_tokens; }

double Perplexity::loss_so_far() const {
  return impl_->scored_loss / static_cast<double>(std::max<int64_t>(1, impl_->scored_tokens));
}

}  // namespace osdn::eval
