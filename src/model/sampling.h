// The next token from logits: temperature, top-k, top-p, repetition penalty. Random numbers are counter-based
// on (key, position), so a draw depends on nothing that was drawn before.
#pragma once

#include <cstdint>
#include <vector>

namespace osdn::model {

// V: columns of the logits.

struct SamplingOptions {
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = 0;         // keep the k likeliest; 0: all
  double top_p = 1.0;        // keep the smallest set of at least this probability
  double repetition_penalty =
      1.0;                     // divides positive and multiplies negative logits of tokens already present
  int64_t num_ids = 0;         // ids from here on are padding of the model and never chosen; 0: V
  std::vector<int32_t> never;  // further ids that are never chosen, e.g. pad
};

/// Throws UserError naming the first option outside its range.
void check_sampling(const SamplingOptions& options);

/// `logits` [V] fp32; `present`: tokens of prompt and continuation, for the repetition penalty; `position`
/// numbers the draw within its sequence. Equal logits: the lower id comes first. Throws DataError when a
/// logit of a permitted token is NaN or none is finite.
int32_t sample_token(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                     const std::vector<int32_t>& present, uint64_t key, int64_t position);

}  // namespace osdn::model
