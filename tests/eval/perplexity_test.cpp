#include "eval/perplexity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "tests/model/small_model.h"
#include "tests/support/test.h"

namespace osdn::eval {
namespace perplexity_test {

using test::SmallModel;

SmallModel small_model() { return SmallModel(test::small_config(true, true), at::kCPU, /*training=*/false); }

EvalDocument document(int64_t num_targets, uint64_t seed) {
  const at::Tensor ids = test::random_ids(num_targets, seed);
  EvalDocument made{.name = "document " + std::to_string(seed),
                    .tokens = {1},
                    .text_bytes = 4 * num_targets,
                    .num_words = (num_targets + 2) / 3};
  for (int64_t i = 0; i < num_targets; ++i)
    made.tokens.push_back(static_cast<int32_t>(ids[i].item<int64_t>()));
  return made;
}

/// 50 documents of mixed length, empty and single-token ones among them.
std::vector<EvalDocument> mixed_documents() {
  std::vector<EvalDocument> documents;
  for (uint64_t i = 0; i < 50; ++i) documents.push_back(document(static_cast<int64_t>(i * i * 37 % 151), i));
  return documents;
}

PerplexityResult evaluate(const SmallModel& small, const std::vector<EvalDocument>& documents,
                          const PerplexityOptions& options) {
  Perplexity perplexity(small.model(), at::kCPU, options);
  for (const EvalDocument& item : documents) perplexity.add(item);
  return perplexity.finish();
}

/// -log p of every target by one full softmax over the document read from bos.
std::vector<double> losses_by_hand(const SmallModel& small, const EvalDocument& item) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> inputs(item.tokens.begin(), item.tokens.end() - 1);
  model::ForwardCall call{.sequences =
                              ops::Sequences::make({0, static_cast<int64_t>(inputs.size())}, at::kCPU)};
  const at::Tensor log_p = small.model()
                               .logits(small.model().hidden(at::tensor(inputs, at::kLong), call))
                               .to(at::kDouble)
                               .log_softmax(1);
  std::vector<double> losses;
  for (size_t i = 0; i < inputs.size(); ++i)
    losses.push_back(-log_p[static_cast<int64_t>(i)][item.tokens[i + 1]].item<double>());
  return losses;
}

TEST_CASE("word, token and byte perplexity are exactly their definitions", "[perplexity]") {
  const PerplexityTotals totals{
      .num_documents = 1, .num_tokens = 14, .num_words = 10, .text_bytes = 60, .negative_log_likelihood = 35};
  CHECK(totals.loss() == Approx(2.5));
  CHECK(totals.word_perplexity().value() == Approx(33.115).epsilon(1e-4));
  CHECK(totals.token_perplexity() == Approx(12.182).epsilon(1e-4));
  CHECK(totals.byte_perplexity() == Approx(1.7920).epsilon(1e-4));
  CHECK(totals.bits_per_byte() == Approx(0.8416).epsilon(1e-4));
  CHECK_FALSE(PerplexityTotals{.num_tokens = 1, .num_words = std::nullopt}.word_perplexity().has_value());
}

TEST_CASE("a document scores the sum over its tokens of the full forward", "[perplexity]") {
  const SmallModel small = small_model();
  const EvalDocument item = document(200, 3);
  const std::vector<double> losses = losses_by_hand(small, item);
  const double expected = std::accumulate(losses.begin(), losses.end(), 0.0);
  const PerplexityResult found = evaluate(small, {item}, {.training_length = 64});
  CHECK(found.totals.negative_log_likelihood == Approx(expected).epsilon(1e-6));
  CHECK(found.totals.num_tokens == 200);
  CHECK(found.totals.num_words == 67);
  CHECK(found.totals.text_bytes == 800);
  // By position: 4, 8, 16, 32, 64 and beyond the training length 128 and 256.
  REQUIRE(found.buckets.size() == 7);
  int64_t from = 1;
  for (const PositionBucket& bucket : found.buckets) {
    CHECK(bucket.from == from);
    const int64_t end = std::min<int64_t>(bucket.to, 200);
    CHECK(bucket.num_tokens == end - from + 1);
    CHECK(bucket.negative_log_likelihood ==
          Approx(std::accumulate(losses.begin() + from - 1, losses.begin() + end, 0.0)).epsilon(1e-5));
    from = bucket.to + 1;
  }
  CHECK(found.buckets.back().to == 256);
}

TEST_CASE("scores do not depend on the batch, the order or the company", "[perplexity]") {
  const SmallModel small = small_model();
  const std::vector<EvalDocument> documents = mixed_documents();
  for (const int64_t window : {0, 32}) {
    const PerplexityOptions one_batch{
        .window = window, .stride = window / 2, .tokens_at_once = 1 << 20, .training_length = 64};
    const PerplexityResult expected = evaluate(small, documents, one_batch);
    REQUIRE(expected.documents.size() == 50);
    CHECK(expected.totals.num_documents == 50);
    CHECK(expected.totals.num_empty == 1);
    for (const int64_t tokens_at_once : {1, 100, 333}) {
      PerplexityOptions options = one_batch;
      options.tokens_at_once = tokens_at_once;
      std::vector<size_t> order(documents.size());
      std::iota(order.begin(), order.end(), size_t{0});
      if (tokens_at_once == 100)
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
          return documents[a].tokens.size() < documents[b].tokens.size();
        });
      if (tokens_at_once == 333) std::reverse(order.begin(), order.end());
      std::vector<EvalDocument> given;
      for (const size_t i : order) given.push_back(documents[i]);
      const PerplexityResult found = evaluate(small, given, options);
      REQUIRE(found.documents.size() == documents.size());
      double worst = 0;
      for (size_t i = 0; i < order.size(); ++i) {
        const DocumentScore& score = found.documents[i];
        const DocumentScore& same = expected.documents[order[i]];
        CHECK(score.name == documents[order[i]].name);
        CHECK(score.num_tokens == same.num_tokens);
        worst = std::max(worst, std::abs(score.negative_log_likelihood - same.negative_log_likelihood));
      }
      INFO("window " << window << ", " << tokens_at_once << " tokens at once");
      CHECK(worst < 1e-4);
      CHECK(found.totals.num_tokens == expected.totals.num_tokens);
      CHECK(found.totals.text_bytes == expected.totals.text_bytes);
      CHECK(found.totals.num_words == expected.totals.num_words);
      REQUIRE(found.buckets.size() == expected.buckets.size());
      for (size_t i = 0; i < found.buckets.size(); ++i)
        CHECK(found.buckets[i].num_tokens == expected.buckets[i].num_tokens);
    }
  }
}

TEST_CASE("a window sees its own tokens and nothing from before", "[perplexity]") {
  const SmallModel small = small_model();
  const EvalDocument item = document(100, 9);
  const auto score = [&](const EvalDocument& scored, int64_t window, int64_t stride) {
    return evaluate(small, {scored}, {.window = window, .stride = stride}).totals.negative_log_likelihood;
  };
  // A window as long as the document is the whole document.
  CHECK(score(item, 100, 100) == Approx(score(item, 0, 0)).epsilon(1e-6));
  CHECK(score(item, 5000, 1) == Approx(score(item, 0, 0)).epsilon(1e-6));
  // Blocks by hand: tokens 0-39, 40-79 and, with as much context as fits, 60-99 scored from 80 on.
  double expected = 0;
  for (const auto& [begin, first, end] : {std::array<size_t, 3>{0, 0, 40}, {40, 40, 80}, {60, 80, 100}}) {
    EvalDocument block;
    block.tokens.assign(item.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                        item.tokens.begin() + static_cast<std::ptrdiff_t>(end) + 1);
    const std::vector<double> losses = losses_by_hand(small, block);
    expected =
        std::accumulate(losses.begin() + static_cast<std::ptrdiff_t>(first - begin), losses.end(), expected);
  }
  CHECK(score(item, 40, 40) == Approx(expected).epsilon(1e-6));
  CHECK(score(item, 40, 40) != Approx(score(item, 0, 0)).epsilon(1e-6));
}

TEST_CASE("a uniform model scores the logarithm of the vocabulary for every token", "[perplexity]") {
  SmallModel small = small_model();
  small.arena().master("lm_head.weight").zero_();
  const PerplexityResult found = evaluate(small, mixed_documents(), {.window = 30, .stride = 7});
  CHECK(found.totals.loss() == Approx(std::log(61.0)).epsilon(1e-6));
  CHECK(found.totals.token_perplexity() == Approx(61.0).epsilon(1e-5));
  CHECK(found.totals.bits_per_byte() == Approx(std::log2(61.0) / 4).epsilon(1e-6));
}

TEST_CASE("documents without text contribute nothing, unknown words stay unknown", "[perplexity]") {
  const SmallModel small = small_model();
  EvalDocument nothing{.name = "empty", .tokens = {1}, .text_bytes = 7, .num_words = 3};
  const EvalDocument item = document(5, 1);
  const PerplexityResult found = evaluate(small, {nothing, item, nothing}, {});
  CHECK(found.totals.num_empty == 2);
  CHECK(found.totals.num_tokens == 5);
  CHECK(found.totals.text_bytes == 20);
  CHECK(found.totals.num_words == 2);
  EvalDocument wordless = item;
  wordless.num_words.reset();
  CHECK_FALSE(evaluate(small, {item, wordless}, {}).totals.num_words.has_value());
  CHECK(evaluate(small, {}, {}).totals.num_tokens == 0);
}

TEST_CASE("weights that are not finite and tokens outside the vocabulary are named", "[perplexity]") {
  SmallModel small = small_model();
  EvalDocument foreign = document(3, 1);
  foreign.tokens.back() = test::kSmallVocab;
  CHECK_THROWS_AS(evaluate(small, {foreign}, {}), UserError);
  CHECK_THROWS_AS(evaluate(small, {}, {.window = 4, .stride = 5}), UserError);
  small.arena().master("model.norm.weight").fill_(std::nan(""));
  CHECK_THROWS_AS(evaluate(small, {document(3, 1)}, {}), DataError);
}

TEST_CASE("on CUDA a document scores as on the CPU", "[perplexity][cuda]") {
  REQUIRE(at::hasCUDA());
  const SmallModel host = small_model();
  const SmallModel device(test::small_config(true, true), at::kCUDA, /*training=*/false);
  const std::vector<EvalDocument> documents = mixed_documents();
  const PerplexityOptions options{.tokens_at_once = 512, .training_length = 64};
  const PerplexityResult expected = evaluate(host, documents, options);
  Perplexity perplexity(device.model(), at::kCUDA, options);
  for (const EvalDocument& item : documents) perplexity.add(item);
  const PerplexityResult found = perplexity.finish();
  for (size_t i = 0; i < documents.size(); ++i)
    CHECK(found.documents[i].negative_log_likelihood ==
          Approx(expected.documents[i].negative_log_likelihood).epsilon(1e-5).margin(1e-4));
}

}  // namespace perplexity_test
}  // namespace osdn::eval
