#include "model/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "tensor/torch.h"

namespace osdn::model {
namespace {

/// Uniform in [0, 1), a function of (seed, position) alone.
double counter_uniform(int64_t seed, int64_t position) {
  const uint64_t words[2] = {static_cast<uint64_t>(seed), static_cast<uint64_t>(position)};
  return static_cast<double>(digest(words, sizeof(words)).low >> 11) * 0x1p-53;
}

/// Rows of `state` that go on, in order: [S] becomes [rows.size()].
void keep_rows(ModelState& state, const at::Tensor& rows) {
  for (MixerState& layer : state)
    for (at::Tensor* tensor : {&layer.recurrent, &layer.scale, &layer.conv})
      if (tensor->defined()) *tensor = tensor->index_select(0, rows);
}

at::Tensor to_ids(const std::vector<int64_t>& ids, at::Device device) {
  return at::tensor(ids, at::kLong).to(device);
}

}  // namespace

int32_t sample_token(const at::Tensor& logits, const SamplingOptions& options,
                     const std::vector<int32_t>& present, int64_t position) {
  const at::Tensor row = logits.contiguous().clone();
  float* values = row.data_ptr<float>();
  const auto size = static_cast<size_t>(row.numel());
  if (options.repetition_penalty != 1.0) {
    std::vector<int32_t> once = present;
    std::sort(once.begin(), once.end());
    once.erase(std::unique(once.begin(), once.end()), once.end());
    const auto penalty = static_cast<float>(options.repetition_penalty);
    for (const int32_t token : once)
      values[token] = values[token] > 0 ? values[token] / penalty : values[token] * penalty;
  }
  // Equal logits: the lower id wins, everywhere the same.
  std::vector<int32_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  };
  if (options.temperature <= 0) return *std::min_element(order.begin(), order.end(), likelier);

  std::sort(order.begin(), order.end(), likelier);
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  std::vector<double> weights;
  for (const int32_t token : order)
    weights.push_back(
        std::exp((static_cast<double>(values[token]) - values[order.front()]) / options.temperature));
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options.top_p < 1.0) {
    double sum = 0;
    size_t kept = 0;
    while (kept < weights.size() && sum < options.top_p * total) sum += weights[kept++];
    weights.resize(std::max<size_t>(kept, 1));
    total = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  double target = counter_uniform(options.seed, position) * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    target -= weights[i];
    if (target < 0) return order[i];
  }
  return order[weights.size() - 1];
}

std::vector<std::vector<int32_t>> generate(const LanguageModel& model,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const SamplingOptions& options, at::Device device,
                                           const TokenCallback& on_token) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> ids;
  std::vector<int64_t> offsets = {0};
  for (const std::vector<int32_t>& prompt : prompts) {
    if (prompt.empty())
      throw UserError("generate: expected at least one token in every prompt, got an empty one");
    for (const int32_t token : prompt) {
      if (token < 0 || token >= model.vocab_size())
        throw UserError("generate: expected token ids below {}, got {}", model.vocab_size(), token);
      ids.push_back(token);
    }
    offsets.push_back(static_cast<int64_t>(ids.size()));
  }
  std::vector<std::vector<int32_t>> present = prompts;
  std::vector<std::vector<int32_t>> results(prompts.size());
  std::vector<int64_t> active(prompts.size());
  std::iota(active.begin(), active.end(), 0);
  if (options.max_new_tokens <= 0) return results;

  ModelState state;
  ForwardCall call{.sequences = ops::Sequences::make(offsets, device), .state = &state};
  std::vector<int64_t> last_rows;
  for (size_t i = 1; i < offsets.size(); ++i) last_rows.push_back(offsets[i] - 1);
  at::Tensor hidden =
      model.hidden(to_ids(ids, device), call).index_select(0, to_ids(last_rows, device));  // [S, D]

  for (int64_t position = 0;; ++position) {
    const at::Tensor logits = model.logits(hidden).to(at::kCPU);  // [active, V]
    std::vector<int64_t> going_on;
    std::vector<int64_t> next;
    for (size_t row = 0; row < active.size(); ++row) {
      const auto prompt = static_cast<size_t>(active[row]);
      SamplingOptions own = options;
      // Each prompt draws from its own stream.
      own.seed = static_cast<int64_t>(hash64(fmt::format("{}", prompt), static_cast<uint64_t>(options.seed)));
      const int32_t token = sample_token(logits[static_cast<int64_t>(row)], own, present[prompt], position);
      results[prompt].push_back(token);
      present[prompt].push_back(token);
      const bool stopped = on_token && on_token(active[row], token);
      if (stopped || token == options.stop_token || position + 1 == options.max_new_tokens) continue;
      going_on.push_back(static_cast<int64_t>(row));
      next.push_back(token);
    }
    if (going_on.empty()) return results;
    if (going_on.size() < active.size()) {
      keep_rows(state, to_ids(going_on, device));
      std::vector<int64_t> kept;
      for (const int64_t row : going_on) kept.push_back(active[static_cast<size_t>(row)]);
      active = kept;
    }
    call.sequences = ops::Sequences::equal(static_cast<int64_t>(active.size()), 1, device);
    hidden = model.hidden(to_ids(next, device), call);
  }
}

uint64_t state_bytes(const ModelState& state) {
  uint64_t bytes = 0;
  for (const MixerState& layer : state)
    for (const at::Tensor* tensor : {&layer.recurrent, &layer.scale, &layer.conv})
      if (tensor->defined() && tensor->size(0) > 0)
        bytes += tensor->nbytes() / static_cast<uint64_t>(tensor->size(0));
  return bytes;
}

}  // namespace osdn::model
