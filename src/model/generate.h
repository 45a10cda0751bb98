// Recurrent decoding. Prompts of any lengths are read as packed documents, without padding, then every
// sequence takes one token a step with a state of constant size: S, d and the convolution's history. A
// sequence's tokens do not depend on which others are decoded with it, nor do the last bits of its logits
// (docs/howto/generate.md).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/lm.h"
#include "model/sampling.h"

namespace osdn::model {

// S: sequences; D: hidden size; V: vocabulary.

using TokenIds = std::vector<int32_t>;

/// All that S sequences carry from token to token. A copy is independent of its origin: prefill(), extend()
/// and step() replace tensors and never write into them, so a prefix is read once and continued many times.
struct DecodeState {
  ModelState layers;                // one entry a layer, tensors [S, ...]
  at::Tensor hidden;                // [S, D] of each sequence's newest token
  std::vector<int64_t> num_tokens;  // [S] read so far
  int64_t num_sequences() const { return static_cast<int64_t>(num_tokens.size()); }
};

/// Tokens that prefill and extend run through the model at once, over all sequences: what bounds memory. A
/// longer prompt is cut at multiples of it, and its bits depend on where.
inline constexpr int64_t kPrefillTokens = 8192;

/// Throws UserError naming the first id that is not of the vocabulary.
void check_tokens(const TokenIds& tokens, int64_t vocab_size);

/// State after reading `prompts`, none of them empty. Throws UserError for an empty one or an unknown id.
DecodeState prefill(const LanguageModel& model, const std::vector<TokenIds>& prompts, at::Device device,
                    int64_t tokens_at_once = kPrefillTokens);

/// Reads more tokens: `pieces[s]`, possibly none, for sequence s. Equal to having read all of them at once.
void extend(const LanguageModel& model, const std::vector<TokenIds>& pieces, DecodeState* state,
            int64_t tokens_at_once = kPrefillTokens);

/// Reads one token a sequence.
void step(const LanguageModel& model, const TokenIds& tokens, DecodeState* state);

/// Logits [S, V] fp32 on the CPU for the token after the newest.
at::Tensor next_logits(const LanguageModel& model, const DecodeState& state);

/// The state of sequences `rows` alone, in that order; a row may come several times.
DecodeState select(const DecodeState& state, const std::vector<int64_t>& rows);

/// Bytes that one sequence carries from token to token, of all layers; with softmax attention, which keeps
/// keys and values of every token (up to the window), the longest sequence's.
uint64_t state_bytes(const DecodeState& state);

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 128;
  int64_t seed = 0;
  std::vector<int32_t> stop_tokens;  // each ends a sequence
  int64_t tokens_at_once = kPrefillTokens;
};

enum class Finish { kLength, kStopToken, kCallback };

struct Continuation {
  TokenIds tokens;  // new ones, a stop token included
  Finish finish = Finish::kLength;
  uint64_t state_bytes = 0;  // what the sequence carried from token to token at its end
};

/// Called for every new token of every prompt; returning true ends that sequence.
using TokenCallback = std::function<bool(int64_t prompt, int32_t token)>;

/// Keys of the random numbers of each prompt: functions of the seed, the prompt's tokens and how often the
/// same prompt came before in the list, so that company does not matter and a repeated prompt varies.
std::vector<uint64_t> draw_keys(int64_t seed, const std::vector<TokenIds>& prompts);

/// Decodes one continuation per prompt; `keys` as of draw_keys, one a prompt.
std::vector<Continuation> generate(const LanguageModel& model, const std::vector<TokenIds>& prompts,
                                   const std::vector<uint64_t>& keys, const GenerateOptions& options,
                                   at::Device device, const TokenCallback& on_token = {});

}  // namespace osdn::model
