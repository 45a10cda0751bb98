#include "config/detail/suggest.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace osdn::config::detail {
namespace {

std::string folded(std::string_view word) {
  std::string result;
  for (const char c : word)
    result += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

/// "gdn" of "gated_delta_net".
std::string initials(std::string_view name) {
  std::string letters;
  for (size_t i = 0; i < name.size(); ++i)
    if (i == 0 || name[i - 1] == '_') letters += name[i];
  return letters;
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 37> kSynonyms = {{
    {"lr", "optimizer.learning_rate"},
    {"peak_lr", "optimizer.learning_rate"},
    {"max_lr", "optimizer.learning_rate"},
    {"min_lr_ratio", "optimizer.final_ratio"},
    {"wd", "optimizer.weight_decay"},
    {"grad_clip", "optimizer.clip_norm"},
    {"max_norm", "optimizer.clip_norm"},
    {"max_grad_norm", "optimizer.clip_norm"},
    {"warmup", "optimizer.warmup_steps"},
    {"lr_scheduler", "optimizer.schedule"},
    {"d_model", "model.hidden_size"},
    {"dim", "model.hidden_size"},
    {"n_embd", "model.hidden_size"},
    {"n_layers", "model.num_layers"},
    {"n_layer", "model.num_layers"},
    {"num_hidden_layers", "model.num_layers"},
    {"n_heads", "model.num_heads"},
    {"n_head", "model.num_heads"},
    {"tie_word_embeddings", "model.tie_embeddings"},
    {"expand_v", "model.value_expand"},
    {"num_v_heads", "model.num_value_heads"},
    {"lower_bound", "model.gate_lower_bound"},
    {"sliding_window", "model.attention.window_size"},
    {"allow_neg_eigval", "model.allow_negative_eigenvalues"},
    {"eta", "model.osdn.step_size"},
    {"seq_len", "data.sequence_length"},
    {"max_length", "data.sequence_length"},
    {"context_len", "data.max_document_tokens"},
    {"max_steps", "train.steps"},
    {"num_steps", "train.steps"},
    {"batch_size", "train.global_batch_tokens"},
    {"global_batch_size", "train.global_batch_tokens"},
    {"micro_batch", "train.micro_batch_sequences"},
    {"micro_batch_size", "train.micro_batch_sequences"},
    {"dtype", "train.precision"},
    {"out_dir", "run.directory"},
    {"save_every", "checkpoint.every_steps"},
}};

}  // namespace

int edit_distance(std::string_view first, std::string_view second) {
  const std::string a = folded(first);
  const std::string b = folded(second);
  std::vector<std::vector<int>> cost(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = static_cast<int>(i + j);
        continue;
      }
      cost[i][j] =
          std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestWord = 64;  // bounds the work for garbage
  if (word.size() > kLongestWord) return {};
  for (const std::string& candidate : candidates)
    if (word.size() > 1 && folded(word) == initials(candidate)) return candidate;
  int best_distance = std::max<int>(2, static_cast<int>(word.size()) / 3) + 1;
  std::string best;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    // Two edits turn any two-letter word into any other.
    if (distance >= best_distance || distance >= static_cast<int>(word.size())) continue;
    best_distance = distance;
    best = candidate;
  }
  return best;
}

std::string known_synonym(std::string_view word) {
  const std::string wanted = folded(word);
  for (const auto& [name, key] : kSynonyms)
    if (name == wanted) return std::string(key);
  return {};
}

}  // namespace osdn::config::detail
