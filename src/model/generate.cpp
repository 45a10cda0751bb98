#include "model/generate.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "tensor/torch.h"

namespace osdn::model {
namespace generate_detail {

// Pieces of a prompt end at multiples of the ops' chunks, counted from the prompt's own start: so a long
// prompt gets the bits that it has when read in one piece.
constexpr int64_t kPieceMultiple = 64;

at::Tensor to_device(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

void check_tokens(const TokenIds& tokens, int64_t vocab_size) {
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size)
      throw UserError("generate: expected token ids from 0 to {}, the model's vocabulary, got {}",
                      vocab_size - 1, token);
}

/// One pass of the model over tokens [begin, end) of every piece, cut at its end.
void read_slice(const LanguageModel& model, const std::vector<TokenIds>& pieces, int64_t begin, int64_t end,
                at::Device device, DecodeState* state) {
  std::vector<int64_t> ids;
  std::vector<int64_t> offsets = {0};
  std::vector<int64_t> ended;      // sequences that have tokens here
  std::vector<int64_t> last_rows;  // and the row of their last one
  for (size_t s = 0; s < pieces.size(); ++s) {
    const int64_t size = static_cast<int64_t>(pieces[s].size());
    const int64_t from = std::min(begin, size);
    const int64_t to = std::min(end, size);
    ids.insert(ids.end(), pieces[s].begin() + from, pieces[s].begin() + to);
    offsets.push_back(static_cast<int64_t>(ids.size()));
    if (to == from) continue;
    ended.push_back(static_cast<int64_t>(s));
    last_rows.push_back(offsets.back() - 1);
    state->num_tokens[s] += to - from;
  }
  ForwardCall call{.sequences = ops::Sequences::make(std::move(offsets), device), .state = &state->layers};
  const at::Tensor hidden = model.hidden(to_device(ids, device), call);            // [N, D]
  const at::Tensor newest = hidden.index_select(0, to_device(last_rows, device));  // [ended, D]
  state->hidden =
      ended.size() == pieces.size() ? newest : state->hidden.index_copy(0, to_device(ended, device), newest);
}

void read_pieces(const LanguageModel& model, const std::vector<TokenIds>& pieces, int64_t tokens_at_once,
                 at::Device device, DecodeState* state) {
  const at::NoGradGuard no_grad;
  int64_t longest = 0;
  for (const TokenIds& piece : pieces) {
    check_tokens(piece, model.vocab_size());
    longest = std::max(longest, static_cast<int64_t>(piece.size()));
  }
  if (longest == 0) return;
  const int64_t share = tokens_at_once / static_cast<int64_t>(pieces.size());
  const int64_t slice = std::max(share / kPieceMultiple * kPieceMultiple, kPieceMultiple);
  for (int64_t begin = 0; begin < longest; begin += slice)
    read_slice(model, pieces, begin, begin + slice, device, state);
}

}  // namespace generate_detail

DecodeState prefill(const LanguageModel& model, const std::vector<TokenIds>& prompts, at::Device device,
                    int64_t tokens_at_once) {
  for (size_t i = 0; i < prompts.size(); ++i)
    if (prompts[i].empty())
      throw UserError("generate: prompt {}: expected at least one token (bos starts an empty text), got none",
                      i + 1);
  DecodeState state;
  state.num_tokens.assign(prompts.size(), 0);
  generate_detail::read_pieces(model, prompts, tokens_at_once, device, &state);
  return state;
}

void extend(const LanguageModel& model, const std::vector<TokenIds>& pieces, DecodeState* state,
            int64_t tokens_at_once) {
  OSDN_ASSERT(static_cast<int64_t>(pieces.size()) == state->num_sequences(), "{} pieces for {} sequences",
              pieces.size(), state->num_sequences());
  generate_detail::read_pieces(model, pieces, tokens_at_once, state->hidden.device(), state);
}

void step(const LanguageModel& model, const TokenIds& tokens, DecodeState* state) {
  std::vector<TokenIds> pieces;
  pieces.reserve(tokens.size());
  for (const int32_t token : tokens) pieces.push_back({token});
  extend(model, pieces, state);
}

at::Tensor next_logits(const LanguageModel& model, const DecodeState& state) {
  const at::NoGradGuard no_grad;
  return model.logits(state.hidden).to(at::kCPU, at::kFloat).contiguous();
}

DecodeState select(const DecodeState& state, const std::vector<int64_t>& rows) {
  const at::NoGradGuard no_grad;
  const at::Tensor index = generate_detail::to_device(rows, state.hidden.device());
  const auto chosen = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.index_select(0, index) : at::Tensor();
  };
  DecodeState result;
  for (const MixerState& layer : state.layers) {
    MixerState kept{
        .recurrent = chosen(layer.recurrent), .scale = chosen(layer.scale), .conv = chosen(layer.conv)};
    for (const int64_t row : rows) {
      if (layer.keys.empty()) break;
      const auto s = static_cast<size_t>(row);
      kept.keys.push_back(layer.keys[s]);
      kept.values.push_back(layer.values[s]);
      kept.num_read.push_back(layer.num_read[s]);
    }
    result.layers.push_back(std::move(kept));
  }
  result.hidden = chosen(state.hidden);
  for (const int64_t row : rows) result.num_tokens.push_back(state.num_tokens[static_cast<size_t>(row)]);
  return result;
}

uint64_t state_bytes(const DecodeState& state) {
  uint64_t bytes = 0;
  for (const MixerState& layer : state.layers) {
    for (const at::Tensor* tensor : {&layer.recurrent, &layer.scale, &layer.conv})
      if (tensor->defined() && tensor->size(0) > 0)
        bytes += tensor->nbytes() / static_cast<uint64_t>(tensor->size(0));
    uint64_t longest = 0;
    for (size_t s = 0; s < layer.keys.size(); ++s)
      longest = std::max<uint64_t>(longest, layer.keys[s].nbytes() + layer.values[s].nbytes());
    bytes += longest;
  }
  return bytes;
}

std::vector<uint64_t> draw_keys(int64_t seed, const std::vector<TokenIds>& prompts) {
  std::map<TokenIds, uint64_t> seen;
  std::vector<uint64_t> keys;
  keys.reserve(prompts.size());
  for (const TokenIds& prompt : prompts) {
    const Digest128 text = digest(prompt.data(), prompt.size() * sizeof(int32_t));
    const uint64_t words[4] = {static_cast<uint64_t>(seed), text.high, text.low, seen[prompt]++};
    keys.push_back(digest(words, sizeof(words)).low);
  }
  return keys;
}

std::vector<Continuation> generate(const LanguageModel& model, const std::vector<TokenIds>& prompts,
                                   const std::vector<uint64_t>& keys, const GenerateOptions& options,
                                   at::Device device, const TokenCallback& on_token) {
  OSDN_ASSERT(keys.size() == prompts.size(), "{} keys for {} prompts", keys.size(), prompts.size());
  check_sampling(options.sampling);
  std::vector<Continuation> results(prompts.size());
  if (options.max_new_tokens <= 0 || prompts.empty()) return results;

  std::vector<TokenIds> present = prompts;
  std::vector<int64_t> active(prompts.size());  // the prompts behind the rows of the state
  std::iota(active.begin(), active.end(), 0);
  DecodeState state = prefill(model, prompts, device, options.tokens_at_once);
  for (int64_t position = 0;; ++position) {
    const at::Tensor logits = next_logits(model, state);  // [active, V]
    const uint64_t carried = state_bytes(state);
    std::vector<int64_t> rows;
    TokenIds next;
    for (size_t row = 0; row < active.size(); ++row) {
      const auto prompt = static_cast<size_t>(active[row]);
      const int32_t token =
          sample_token(logits.const_data_ptr<float>() + static_cast<int64_t>(row) * logits.size(1),
                       logits.size(1), options.sampling, present[prompt], keys[prompt], position);
      Continuation& result = results[prompt];
      result.tokens.push_back(token);
      result.state_bytes = carried;
      present[prompt].push_back(token);
      const bool ended = on_token && on_token(active[row], token);
      const auto& stops = options.stop_tokens;
      if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
        result.finish = Finish::kStopToken;
      } else if (ended) {
        result.finish = Finish::kCallback;
      } else if (position + 1 < options.max_new_tokens) {
        rows.push_back(static_cast<int64_t>(row));
        next.push_back(token);
      }
    }
    if (rows.empty()) return results;
    if (rows.size() < active.size()) {
      state = select(state, rows);
      std::vector<int64_t> kept;
      for (const int64_t row : rows) kept.push_back(active[static_cast<size_t>(row)]);
      active = std::move(kept);
    }
    step(model, next, &state);
  }
}

}  // namespace osdn::model
