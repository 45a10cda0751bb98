// Recurrent decoding: one prefill of all prompts, then one token a sequence and step, with a state of
// constant size (S, d and the convolution's history). A sequence's tokens do not depend on which others are
// decoded with it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/lm.h"

namespace osdn::model {

struct SamplingOptions {
  int64_t max_new_tokens = 128;
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = 0;         // keep the k likeliest; 0: all
  double top_p = 1.0;        // keep the smallest set of at least this probability
  double repetition_penalty =
      1.0;                  // divides positive and multiplies negative logits of tokens already present
  int64_t seed = 0;         // random numbers are counter-based on (seed, prompt, position)
  int32_t stop_token = -1;  // ends a sequence; -1: none
};

/// Called for every new token of every prompt; returning true ends that sequence.
using TokenCallback = std::function<bool(int64_t prompt, int32_t token)>;

/// The next token from logits [V] fp32 on the CPU. `position` numbers the draw within its sequence.
int32_t sample_token(const at::Tensor& logits, const SamplingOptions& options,
                     const std::vector<int32_t>& present, int64_t position);

/// Decodes one continuation per prompt (token ids, none empty). Returns the new tokens, a stop token
/// included.
std::vector<std::vector<int32_t>> generate(const LanguageModel& model,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const SamplingOptions& options, at::Device device,
                                           const TokenCallback& on_token = {});

/// Bytes that one sequence carries from token to token, of all layers.
uint64_t state_bytes(const ModelState& state);

}  // namespace osdn::model
