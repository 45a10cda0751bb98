#include "model/generate.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "model/decode_graph.h"
#include "tensor/torch.h"

namespace osdn::model {

void check_tokens(const TokenIds& tokens, int64_t vocab_size) {
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size)
      throw UserError("generate: expected token ids from 0 to {}, the model's vocabulary, got {}",
                      vocab_size - 1, token);
}

namespace generate_detail {

// Slices of a prompt end at multiples of the ops' chunks, counted from its own start.
constexpr int64_t kPieceMultiple = 64;

// Fewer steps than this take longer to record than to make.
constexpr int64_t kStepsWorthRecording = 8;

at::Tensor to_device(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

/// Pieces in hand: tokens [begin, end) of each, cut at its end.
struct Slice {
  const std::vector<TokenIds>& pieces;
  int64_t begin = 0;
  int64_t end = 0;
  bool single_tokens = false;  // one of every piece, by the kernels of decoding
};

/// One pass of the model.
void read_slice(const LanguageModel& model, const Slice& slice, at::Device device, DecodeState* state) {
  const auto& [pieces, begin, end, single_tokens] = slice;
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
  ForwardCall call{.sequences = ops::Sequences::make(std::move(offsets), device),
                   .state = &state->layers,
                   .single_tokens = single_tokens};
  const at::Tensor hidden = model.hidden(to_device(ids, device), call);            // [N, D]
  const at::Tensor newest = hidden.index_select(0, to_device(last_rows, device));  // [ended, D]
  state->hidden =
      ended.size() == pieces.size() ? newest : state->hidden.index_copy(0, to_device(ended, device), newest);
}

/// The states of neighbouring groups of sequences as one.
DecodeState joined(const std::vector<DecodeState>& groups) {
  const auto all = [&](const auto& part) {
    std::vector<at::Tensor> parts;
    for (const DecodeState& group : groups) parts.push_back(part(group));
    return parts.front().defined() ? at::cat(parts) : at::Tensor();
  };
  DecodeState whole;
  whole.hidden = all([](const DecodeState& group) { return group.hidden; });
  for (size_t i = 0; i < groups.front().layers.size(); ++i) {
    MixerState layer{.recurrent = all([i](const DecodeState& group) { return group.layers[i].recurrent; }),
                     .scale = all([i](const DecodeState& group) { return group.layers[i].scale; }),
                     .conv = all([i](const DecodeState& group) { return group.layers[i].conv; })};
    for (const DecodeState& group : groups) {
      const MixerState& from = group.layers[i];
      layer.keys.insert(layer.keys.end(), from.keys.begin(), from.keys.end());
      layer.values.insert(layer.values.end(), from.values.begin(), from.values.end());
      layer.num_read.insert(layer.num_read.end(), from.num_read.begin(), from.num_read.end());
    }
    whole.layers.push_back(std::move(layer));
  }
  for (const DecodeState& group : groups)
    whole.num_tokens.insert(whole.num_tokens.end(), group.num_tokens.begin(), group.num_tokens.end());
  return whole;
}

/// A long piece is read slice by slice; where it is cut depends on nothing but `tokens_at_once`. So many
/// neighbours are read together as have so many tokens in a slice.
void read_pieces(const LanguageModel& model, const std::vector<TokenIds>& pieces, int64_t tokens_at_once,
                 at::Device device, DecodeState* state) {
  const at::NoGradGuard no_grad;
  const ops::SequencesApart apart;
  for (const TokenIds& piece : pieces) check_tokens(piece, model.vocab_size());
  const int64_t slice = std::max(tokens_at_once / kPieceMultiple * kPieceMultiple, kPieceMultiple);
  const auto read = [&](const std::vector<TokenIds>& group, DecodeState* carried) {
    int64_t longest = 0;
    for (const TokenIds& piece : group) longest = std::max(longest, static_cast<int64_t>(piece.size()));
    for (int64_t begin = 0; begin < longest; begin += slice)
      read_slice(model, {.pieces = group, .begin = begin, .end = begin + slice}, device, carried);
  };
  std::vector<size_t> group_ends;
  int64_t tokens = 0;  // of the group at hand, in a slice
  for (size_t s = 0; s < pieces.size(); ++s) {
    const int64_t more = std::min(static_cast<int64_t>(pieces[s].size()), slice);
    if (tokens > 0 && tokens + more > slice) {
      group_ends.push_back(s);
      tokens = 0;
    }
    tokens += more;
  }
  if (group_ends.empty()) {
    read(pieces, state);
    return;
  }
  group_ends.push_back(pieces.size());
  std::vector<DecodeState> groups;
  size_t begin = 0;
  for (const size_t end : group_ends) {
    std::vector<int64_t> rows(end - begin);
    std::iota(rows.begin(), rows.end(), static_cast<int64_t>(begin));
    groups.push_back(select(*state, rows));
    read({pieces.begin() + static_cast<std::ptrdiff_t>(begin),
          pieces.begin() + static_cast<std::ptrdiff_t>(end)},
         &groups.back());
    begin = end;
  }
  *state = joined(groups);
}

/// The sequences that are still decoded: on a GPU by a recorded graph, elsewhere step by step.
class Decoding {
 public:
  Decoding(const LanguageModel& model, DecodeState state, bool recorded)
      : model_(model), state_(std::move(state)), recorded_(recorded && DecodeGraph::fits(state_)) {
    logits_ = next_logits(model_, state_);
    rows_.resize(static_cast<size_t>(state_.num_sequences()));
    std::iota(rows_.begin(), rows_.end(), 0);
  }

  /// Logits [V] for the next token of sequence `row`, one of those still decoded.
  const float* logits(size_t row) const {
    return logits_.const_data_ptr<float>() + rows_[row] * logits_.size(1);
  }

  uint64_t bytes() const { return state_bytes(graph_ ? graph_->state() : state_); }

  /// Goes on with sequences `kept` alone. A graph has a fixed number of sequences: those that ended are read
  /// along until they are half of it, and then a smaller one is recorded.
  void keep(const std::vector<int64_t>& kept) {
    std::vector<int64_t> rows;
    for (const int64_t row : kept) rows.push_back(rows_[static_cast<size_t>(row)]);
    const DecodeState& whole = graph_ ? graph_->state() : state_;
    if (graph_ && 2 * static_cast<int64_t>(rows.size()) > whole.num_sequences()) {
      rows_ = std::move(rows);
      return;
    }
    state_ = select(whole, rows);
    graph_.reset();
    rows_.resize(rows.size());
    std::iota(rows_.begin(), rows_.end(), 0);
  }

  /// Reads one token for each of the sequences.
  void read(const TokenIds& tokens) {
    if (!recorded_) {
      step(model_, tokens, &state_);
      logits_ = next_logits(model_, state_);
      return;
    }
    if (!graph_) {
      graph_ = std::make_unique<DecodeGraph>(model_, state_);
      state_ = {};
    }
    TokenIds all(static_cast<size_t>(graph_->state().num_sequences()), 0);
    for (size_t row = 0; row < rows_.size(); ++row) all[static_cast<size_t>(rows_[row])] = tokens[row];
    logits_ = graph_->step(all);
  }

 private:
  const LanguageModel& model_;
  DecodeState state_;  // empty while there is a graph
  bool recorded_;
  std::unique_ptr<DecodeGraph> graph_;
  std::vector<int64_t> rows_;  // of the graph or the state, one for each sequence still decoded
  at::Tensor logits_;          // [rows of the graph or the state, V] fp32
};

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
  OSDN_ASSERT(static_cast<int64_t>(tokens.size()) == state->num_sequences(), "{} tokens for {} sequences",
              tokens.size(), state->num_sequences());
  const at::NoGradGuard no_grad;
  const ops::SequencesApart apart;
  check_tokens(tokens, model.vocab_size());
  std::vector<TokenIds> pieces;
  pieces.reserve(tokens.size());
  for (const int32_t token : tokens) pieces.push_back({token});
  generate_detail::read_slice(model, {.pieces = pieces, .begin = 0, .end = 1, .single_tokens = true},
                              state->hidden.device(), state);
}

at::Tensor next_logits(const LanguageModel& model, const DecodeState& state) {
  const at::NoGradGuard no_grad;
  const ops::SequencesApart apart;
  return model.logits(state.hidden).to(at::kCPU, at::kFloat).contiguous();
}

DecodeState select(const DecodeState& state, const std::vector<int64_t>& rows) {
  const at::NoGradGuard no_grad;
  // Nothing has been read yet where there is no newest token.
  const at::Tensor index =
      state.hidden.defined() ? generate_detail::to_device(rows, state.hidden.device()) : at::Tensor();
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
  generate_detail::Decoding decoding(model, prefill(model, prompts, device, options.tokens_at_once),
                                     options.max_new_tokens > generate_detail::kStepsWorthRecording);
  for (int64_t position = 0;; ++position) {
    const uint64_t carried = decoding.bytes();
    TokenIds drawn(active.size());
    at::parallel_for(0, static_cast<int64_t>(active.size()), 1, [&](int64_t begin, int64_t end) {
      for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
        const auto prompt = static_cast<size_t>(active[row]);
        drawn[row] = sample_token(decoding.logits(row), model.vocab_size(), options.sampling, present[prompt],
                                  keys[prompt], position);
      }
    });
    std::vector<int64_t> rows;
    TokenIds next;
    for (size_t row = 0; row < active.size(); ++row) {
      const auto prompt = static_cast<size_t>(active[row]);
      const int32_t token = drawn[row];
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
      decoding.keep(rows);
      std::vector<int64_t> kept;
      for (const int64_t row : rows) kept.push_back(active[static_cast<size_t>(row)]);
      active = std::move(kept);
    }
    decoding.read(next);
  }
}

}  // namespace osdn::model
