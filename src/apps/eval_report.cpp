#include "apps/eval_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace osdn::apps {
namespace eval_report_detail {

template <typename T>
Json value_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

double bucket_loss(const eval::PositionBucket& bucket) {
  return bucket.negative_log_likelihood / static_cast<double>(bucket.num_tokens);
}

std::string with_commas(int64_t value) {
  std::string text = std::to_string(value);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<size_t>(at), ",");
  return text;
}

/// Lines of equal width columns, the first aligned to the left and the others to the right.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string text;
  for (const auto& row : rows) {
    std::string line = "  ";
    for (size_t i = 0; i < row.size(); ++i)
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string window_text(const PerplexityRun& run) {
  if (run.window == 0) return "none: whole documents, the state carried from bos to the end";
  return fmt::format("{} tokens, {} newly scored each{}", run.window, run.stride,
                     run.stride == run.window ? " (disjoint blocks)" : "");
}

std::string tokenizer_warning(const PerplexityRun& run) {
  if (!run.tokenizer_lossless || *run.tokenizer_lossless) return {};
  std::string text = "The tokenizer is LOSSY: texts may not come back from their tokens";
  if (run.num_changed) text += fmt::format(" ({} of these documents do not)", with_commas(*run.num_changed));
  return text + ". The model then predicts a changed text: compare numbers per byte or word with care.\n";
}

}  // namespace eval_report_detail

Json perplexity_json(const PerplexityRun& run, const eval::PerplexityResult& result, bool per_document) {
  namespace detail = eval_report_detail;
  const eval::PerplexityTotals& totals = result.totals;
  Json buckets = Json::array();
  for (const eval::PositionBucket& bucket : result.buckets) {
    const bool empty = bucket.num_tokens == 0;
    buckets.push_back(
        {{"from", bucket.from},
         {"to", bucket.to},
         {"tokens", bucket.num_tokens},
         {"loss", empty ? Json(nullptr) : Json(detail::bucket_loss(bucket))},
         {"token_perplexity", empty ? Json(nullptr) : Json(std::exp(detail::bucket_loss(bucket)))}});
  }
  Json json = {
      {"suite", "perplexity"},
      {"checkpoint", run.checkpoint},
      {"step", run.step},
      {"computation", run.computation},
      {"data", run.data},
      {"text_form", run.text_form},
      {"tokenizer",
       {{"digest", detail::value_or_null(run.tokenizer_digest)},
        {"lossless", detail::value_or_null(run.tokenizer_lossless)},
        {"changed_documents", detail::value_or_null(run.num_changed)}}},
      {"window", run.window == 0 ? Json(nullptr) : Json(run.window)},
      {"stride", run.window == 0 ? Json(nullptr) : Json(run.stride)},
      {"training_length", run.training_length},
      {"documents", totals.num_documents},
      {"empty_documents", totals.num_empty},
      {"skipped_records", run.num_skipped},
      {"tokens", totals.num_tokens},
      {"words", detail::value_or_null(totals.num_words)},
      {"bytes", totals.text_bytes},
      {"negative_log_likelihood", totals.negative_log_likelihood},
      {"loss", totals.loss()},
      {"token_perplexity", totals.token_perplexity()},
      {"word_perplexity", detail::value_or_null(totals.word_perplexity())},
      {"byte_perplexity", totals.byte_perplexity()},
      {"bits_per_byte", totals.bits_per_byte()},
      {"by_position", std::move(buckets)},
      {"seconds", run.seconds},
  };
  if (!per_document) return json;
  Json documents = Json::array();
  for (const eval::DocumentScore& score : result.documents)
    documents.push_back({{"name", score.name},
                         {"tokens", score.num_tokens},
                         {"words", detail::value_or_null(score.num_words)},
                         {"bytes", score.text_bytes},
                         {"negative_log_likelihood", score.negative_log_likelihood}});
  json["per_document"] = std::move(documents);
  return json;
}

std::string perplexity_table(const PerplexityRun& run, const eval::PerplexityResult& result) {
  namespace detail = eval_report_detail;
  const eval::PerplexityTotals& totals = result.totals;
  std::string text =
      fmt::format("Perplexity of {}, step {} ({})\n\n", run.checkpoint, run.step, run.computation);
  const std::string files = run.data.size() == 1
                                ? run.data[0]
                                : fmt::format("{} and {} more files", run.data[0], run.data.size() - 1);
  text += fmt::format("  data    {}\n  text    {}\n  window  {}\n\n", files, run.text_form,
                      detail::window_text(run));
  text += detail::aligned({{"documents", detail::with_commas(totals.num_documents),
                            totals.num_empty > 0 ? fmt::format("{} of them empty", totals.num_empty) : ""},
                           {"tokens", detail::with_commas(totals.num_tokens)},
                           {"words", totals.num_words ? detail::with_commas(*totals.num_words) : "unknown"},
                           {"bytes", detail::with_commas(totals.text_bytes)}});
  if (run.num_skipped > 0)
    text += fmt::format("  {} broken records left out\n", detail::with_commas(run.num_skipped));
  text += "\n";
  const std::optional<double> words = totals.word_perplexity();
  text += detail::aligned({{"loss, nats a token", fmt::format("{:.4f}", totals.loss())},
                           {"token perplexity", fmt::format("{:.4f}", totals.token_perplexity())},
                           {"word perplexity", words ? fmt::format("{:.4f}", *words) : "unknown"},
                           {"byte perplexity", fmt::format("{:.4f}", totals.byte_perplexity())},
                           {"bits per byte", fmt::format("{:.4f}", totals.bits_per_byte())}});
  std::vector<std::vector<std::string>> rows = {{"position in the document", "tokens", "loss", "perplexity"}};
  for (const eval::PositionBucket& bucket : result.buckets) {
    if (bucket.num_tokens == 0) continue;
    const double loss = detail::bucket_loss(bucket);
    rows.push_back(
        {fmt::format("{} to {}{}", detail::with_commas(bucket.from), detail::with_commas(bucket.to),
                     bucket.from > run.training_length ? " (beyond training)" : ""),
         detail::with_commas(bucket.num_tokens), fmt::format("{:.4f}", loss),
         fmt::format("{:.4f}", std::exp(loss))});
  }
  text += "\n" + detail::aligned(rows) + "\n";
  return text + detail::tokenizer_warning(run);
}

}  // namespace osdn::apps
