// The result of `osdn eval --suite perplexity` as JSON and as a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "eval/perplexity.h"

namespace osdn::apps {

/// What the numbers were measured on, and how.
struct PerplexityRun {
  std::string checkpoint;
  int64_t step = 0;
  std::string computation;  // "cpu, float32"
  std::vector<std::string> data;
  std::string text_form;
  std::optional<std::string> tokenizer_digest;
  std::optional<bool> tokenizer_lossless;
  std::optional<int64_t> num_changed;  // documents that do not come back from their tokens
  int64_t num_skipped = 0;             // broken records left out
  int64_t training_length = 0;
  int64_t window = 0;  // 0: none
  int64_t stride = 0;
  double seconds = 0;
};

Json perplexity_json(const PerplexityRun& run, const eval::PerplexityResult& result, bool per_document);

std::string perplexity_table(const PerplexityRun& run, const eval::PerplexityResult& result);

}  // namespace osdn::apps
