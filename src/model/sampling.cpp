#include "model/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"

namespace osdn::model {
namespace sampling_detail {

/// Uniform in [0, 1), a function of (key, position) alone.
double counter_uniform(uint64_t key, int64_t position) {
  const uint64_t words[2] = {key, static_cast<uint64_t>(position)};
  return static_cast<double>(digest(words, sizeof(words)).low >> 11) * 0x1p-53;
}

void penalize(const std::vector<int32_t>& present, double repetition_penalty, std::vector<float>* values) {
  std::vector<int32_t> once = present;
  std::sort(once.begin(), once.end());
  once.erase(std::unique(once.begin(), once.end()), once.end());
  const auto penalty = static_cast<float>(repetition_penalty);
  for (const int32_t token : once) {
    if (static_cast<size_t>(token) >= values->size()) continue;
    float& value = (*values)[static_cast<size_t>(token)];
    value = value > 0 ? value / penalty : value * penalty;
  }
}

/// Keeps the start of `order` (likeliest first) whose probability reaches top_p of all, extending the sorted
/// part only as far as needed. Returns the weights of what is kept.
template <typename Likelier, typename Weight>
std::vector<double> keep_nucleus(std::vector<int32_t>* order, double top_p, const Likelier& likelier,
                                 const Weight& weight) {
  double total = 0;
  for (const int32_t token : *order) total += weight(token);
  std::vector<double> weights;
  double sum = 0;
  // A few tokens carry most of the probability, so sorting in growing blocks beats sorting the vocabulary.
  size_t sorted = 0;
  for (size_t block = 64; weights.empty() || (sum < top_p * total && weights.size() < order->size());
       block *= 4) {
    const size_t end = std::min(order->size(), sorted + block);
    const auto at = [&](size_t i) { return order->begin() + static_cast<std::ptrdiff_t>(i); };
    std::partial_sort(at(sorted), at(end), order->end(), likelier);
    for (; sorted < end && (weights.empty() || sum < top_p * total); ++sorted) {
      weights.push_back(weight((*order)[sorted]));
      sum += weights.back();
    }
  }
  order->resize(weights.size());
  return weights;
}

}  // namespace sampling_detail

void check_sampling(const SamplingOptions& options) {
  const auto refuse = [](const char* name, const char* expected, double got) {
    throw UserError("generate: {}: expected {}, got {}", name, expected, got);
  };
  if (!(options.temperature >= 0) || std::isinf(options.temperature))
    refuse("temperature", "a number of at least 0", options.temperature);
  if (options.top_k < 0) refuse("top-k", "at least 0", static_cast<double>(options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1)) refuse("top-p", "above 0 and at most 1", options.top_p);
  if (!(options.repetition_penalty > 0) || std::isinf(options.repetition_penalty))
    refuse("repetition-penalty", "a number above 0", options.repetition_penalty);
}

int32_t sample_token(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                     const std::vector<int32_t>& present, uint64_t key, int64_t position) {
  const int64_t num_ids = options.num_ids > 0 ? std::min(options.num_ids, vocab_size) : vocab_size;
  std::vector<float> values(logits, logits + num_ids);
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (const int32_t token : options.never)
    if (token >= 0 && token < num_ids) values[static_cast<size_t>(token)] = kNever;
  if (options.repetition_penalty != 1.0)
    sampling_detail::penalize(present, options.repetition_penalty, &values);

  const auto value = [&](int32_t token) { return values[static_cast<size_t>(token)]; };
  int32_t best = 0;
  for (int32_t token = 0; token < num_ids; ++token) {
    if (std::isnan(value(token)))
      throw DataError(
          "generate: the logit of token {} is not a number after {} new tokens; the weights hold NaN or "
          "overflow "
          "(`osdn inspect` the checkpoint, or try --precision float32)",
          token, position);
    if (value(token) > value(best)) best = token;
  }
  const float top = value(best);
  if (!std::isfinite(top))
    throw DataError("generate: no permitted token has a finite logit after {} new tokens (largest: {})",
                    position, top);
  if (options.temperature <= 0) return best;

  std::vector<int32_t> order(static_cast<size_t>(num_ids));
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  };
  const auto weight = [&](int32_t token) {
    return std::exp((static_cast<double>(value(token)) - top) / options.temperature);
  };
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) {
    std::nth_element(order.begin(), order.begin() + options.top_k, order.end(), likelier);
    order.resize(static_cast<size_t>(options.top_k));
    std::sort(order.begin(), order.end());  // nth_element leaves an order of its own choosing
  }
  std::vector<double> weights;
  if (options.top_p < 1.0) {
    weights = sampling_detail::keep_nucleus(&order, options.top_p, likelier, weight);
  } else {
    for (const int32_t token : order) weights.push_back(weight(token));
  }
  double target =
      sampling_detail::counter_uniform(key, position) * std::accumulate(weights.begin(), weights.end(), 0.0);
  int32_t last = best;  // rounding may leave a remainder after the last token
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = order[i];
    target -= weights[i];
    if (target < 0) break;
  }
  return last;
}

}  // namespace osdn::model
