// Decoding on the GPU: a prompt read at once, then single tokens through the step kernel, against one pass
// over all of them; every backbone, plain and preconditioned.
#include <optional>
#include <vector>

#include "model/decode_graph.h"
#include "model/generate.h"
#include "tests/model/small_model.h"
#include "tests/support/test.h"

namespace osdn::model {
namespace decode_cuda_test {

using test::SmallModel;

const at::Device kDecodeDevice(at::kCUDA, 0);

/// Logits [N, V] of one pass over the whole sequence, without any state.
at::Tensor whole_logits(const LanguageModel& model, const TokenIds& tokens) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()), at::kLong);
  ForwardCall call{.sequences = ops::Sequences::make({0, ids.numel()}, kDecodeDevice)};
  return model.logits(model.hidden(ids.to(kDecodeDevice), call)).to(at::kCPU, at::kFloat);
}

TokenIds some_tokens(int64_t count, uint64_t seed) {
  const at::Tensor ids = test::random_ids(count, seed);
  return {ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + count};
}

TEST_CASE(
    "on the GPU, a prompt then single tokens give the logits of one pass, for several sequences at once",
    "[decode_cuda][cuda]") {
  const at::ScalarType compute = GENERATE(at::kFloat, at::kBFloat16);
  for (const test::Variant& variant : test::variants()) {
    CAPTURE(variant.name, c10::toString(compute));
    const SmallModel small(variant.model, kDecodeDevice, /*training=*/false, compute);
    const std::vector<TokenIds> texts = {some_tokens(40, 1), some_tokens(80, 2), some_tokens(11, 3)};
    std::vector<at::Tensor> expected;  // [N, V] each
    std::vector<TokenIds> prompts;
    for (const TokenIds& text : texts) {
      expected.push_back(whole_logits(small.model(), text));
      prompts.emplace_back(text.begin(), text.end() - 10);
    }
    DecodeState state = prefill(small.model(), prompts, kDecodeDevice);
    // bf16 rounds activations of two layers, in other groups of tokens in the two ways.
    const double tolerance = compute == at::kBFloat16 ? 5e-2 : 1e-4;
    for (int64_t i = 0;; ++i) {
      const at::Tensor logits = next_logits(small.model(), state);
      TokenIds next;
      for (size_t s = 0; s < texts.size(); ++s) {
        const auto position = static_cast<int64_t>(prompts[s].size()) + i;
        CAPTURE(s, position);
        test::check_close("logits", logits[static_cast<int64_t>(s)], expected[s][position - 1], tolerance);
        if (i < 10) next.push_back(texts[s][static_cast<size_t>(position)]);
      }
      if (i == 10) break;
      step(small.model(), next, &state);
    }
  }
}

TEST_CASE("on the GPU, a step leaves the state it started from as it was", "[decode_cuda][cuda]") {
  const SmallModel small(test::small_config(true, true), kDecodeDevice, /*training=*/false, at::kBFloat16);
  const DecodeState origin = prefill(small.model(), {some_tokens(20, 4)}, kDecodeDevice);
  const at::Tensor before = origin.layers[0].recurrent.clone();
  DecodeState first = origin;
  DecodeState second = origin;
  step(small.model(), {5}, &first);
  step(small.model(), {5}, &second);
  CHECK(at::equal(origin.layers[0].recurrent, before));
  CHECK(at::equal(first.layers[1].recurrent, second.layers[1].recurrent));
  CHECK(at::equal(first.hidden, second.hidden));
  CHECK(!at::equal(first.layers[0].recurrent, before));
}

TEST_CASE("on the GPU, recorded steps give the bits of steps made one by one and leave their origin alone",
          "[decode_cuda][cuda]") {
  const at::ScalarType compute = GENERATE(at::kFloat, at::kBFloat16);
  for (const test::Variant& variant : test::variants()) {
    CAPTURE(variant.name, c10::toString(compute));
    const SmallModel small(variant.model, kDecodeDevice, /*training=*/false, compute);
    const std::vector<TokenIds> prompts = {some_tokens(40, 1), some_tokens(80, 2), some_tokens(11, 3)};
    const DecodeState origin = prefill(small.model(), prompts, kDecodeDevice);
    const bool grows =
        !variant.model.attention.layers.empty() || variant.model.backbone == config::Backbone::kTransformer;
    CHECK(DecodeGraph::fits(origin) == !grows);
    if (grows) continue;
    const at::Tensor before = origin.layers[0].recurrent.clone();
    const at::Tensor history = origin.layers[1].conv.clone();
    DecodeState eager = origin;
    DecodeGraph graph(small.model(), origin);
    for (int32_t i = 0; i < 6; ++i) {
      CAPTURE(i);
      const TokenIds next = {5 + i, 17 * i % 61, 60 - i};
      step(small.model(), next, &eager);
      CHECK(at::equal(graph.step(next), next_logits(small.model(), eager)));
    }
    const DecodeState copy = select(graph.state(), {0, 1, 2});
    graph.step({1, 2, 3});
    for (size_t layer = 0; layer < copy.layers.size(); ++layer) {
      CHECK(at::equal(copy.layers[layer].recurrent, eager.layers[layer].recurrent));
      CHECK(at::equal(copy.layers[layer].conv, eager.layers[layer].conv));
      if (variant.model.osdn) CHECK(at::equal(copy.layers[layer].scale, eager.layers[layer].scale));
    }
    CHECK(copy.num_tokens == std::vector<int64_t>{46, 86, 17});
    CHECK(at::equal(origin.layers[0].recurrent, before));
    CHECK(at::equal(origin.layers[1].conv, history));
  }
}

/// The variants, and one whose heads are as wide as those of the shipped models.
std::vector<test::Variant> variants_and_wide() {
  std::vector<test::Variant> all = test::variants();
  for (const config::Model& narrow :
       {test::small_config(false, false), test::small_gated_delta_net(), test::small_kda()}) {
    config::Model wide = test::with_osdn(narrow, config::Retention::kOwnGate);
    wide.num_heads = 2;
    wide.num_value_heads = 2;
    wide.head_dim = 128;
    wide.value_expand = 1;
    wide.hidden_size = 256;
    all.push_back({"wide heads", wide});
  }
  return all;
}

/// Prompts of so many tokens each.
std::vector<TokenIds> prompts_of(const std::vector<int64_t>& lengths) {
  std::vector<TokenIds> prompts;
  for (const int64_t length : lengths)
    prompts.push_back(some_tokens(length, 30 + static_cast<uint64_t>(length)));
  return prompts;
}

TEST_CASE("on the GPU, a sequence's logits have the same bits alone and beside others, read and recorded",
          "[decode_cuda][cuda]") {
  const at::ScalarType compute = GENERATE(at::kFloat, at::kBFloat16);
  // One token, ends of chunks, slices of 128 tokens cut at and within a chunk of their last token.
  const std::vector<TokenIds> prompts = prompts_of({7, 1, 64, 65, 129, 3, 200, 20, 31, 2, 128});
  constexpr int64_t kAtOnce = 128;
  for (const test::Variant& variant : variants_and_wide()) {
    CAPTURE(variant.name, c10::toString(compute));
    const SmallModel small(variant.model, kDecodeDevice, /*training=*/false, compute);
    const DecodeState together = prefill(small.model(), prompts, kDecodeDevice, kAtOnce);
    const at::Tensor first = next_logits(small.model(), together);
    const bool recorded = DecodeGraph::fits(together);
    std::optional<DecodeGraph> graph;
    if (recorded) graph.emplace(small.model(), together);
    DecodeState stepped = together;
    std::vector<at::Tensor> logits = {first};  // [S, V] after the prompts and after every token
    for (int32_t round = 0; round < 3; ++round) {
      TokenIds next;
      for (size_t i = 0; i < prompts.size(); ++i) next.push_back(static_cast<int32_t>(5 * i) + round);
      step(small.model(), next, &stepped);
      logits.push_back(next_logits(small.model(), stepped));
      if (recorded) CHECK(at::equal(graph->step(next), logits.back()));
    }
    extend(small.model(), std::vector<TokenIds>(prompts.size(), some_tokens(9, 3)), &stepped, kAtOnce);
    logits.push_back(next_logits(small.model(), stepped));
    for (size_t i = 0; i < prompts.size(); ++i) {
      CAPTURE(i, prompts[i].size());
      DecodeState alone = prefill(small.model(), {prompts[i]}, kDecodeDevice, kAtOnce);
      for (size_t round = 0;; ++round) {
        CAPTURE(round);
        CHECK(at::equal(next_logits(small.model(), alone)[0], logits[round][static_cast<int64_t>(i)]));
        if (round == 4) break;
        if (round == 3)
          extend(small.model(), {some_tokens(9, 3)}, &alone, kAtOnce);
        else
          step(small.model(), {static_cast<int32_t>(5 * i + round)}, &alone);
      }
    }
  }
}

TEST_CASE("on the GPU, a sequence has the same bits beside so many that other kernels take them",
          "[decode_cuda][cuda]") {
  const at::ScalarType compute = GENERATE(at::kFloat, at::kBFloat16);
  const test::Variant variant = variants_and_wide().back();
  const SmallModel small(variant.model, kDecodeDevice, /*training=*/false, compute);
  const std::vector<TokenIds> three = prompts_of({70, 1, 130});
  std::vector<TokenIds> prompts;
  for (int64_t i = 0; i < 100; ++i) prompts.push_back(three[static_cast<size_t>(i % 3)]);
  DecodeState together = prefill(small.model(), prompts, kDecodeDevice, 100 * 130);
  DecodeState alone = prefill(small.model(), three, kDecodeDevice);
  for (int32_t round = 0; round < 3; ++round) {
    const at::Tensor many = next_logits(small.model(), together);
    const at::Tensor few = next_logits(small.model(), alone);
    for (int64_t i = 0; i < 100; ++i) CHECK(at::equal(many[i], few[i % 3]));
    step(small.model(), TokenIds(100, round), &together);
    step(small.model(), TokenIds(3, round), &alone);
  }
}

TEST_CASE("on the GPU, sequences that end at different times get the tokens that each gets alone",
          "[decode_cuda][cuda]") {
  const at::ScalarType compute = GENERATE(at::kFloat, at::kBFloat16);
  for (const test::Variant& variant : test::variants()) {
    CAPTURE(variant.name, c10::toString(compute));
    const SmallModel small(variant.model, kDecodeDevice, /*training=*/false, compute);
    std::vector<TokenIds> prompts;
    for (uint64_t i = 0; i < 7; ++i) prompts.push_back(some_tokens(3 + 9 * static_cast<int64_t>(i), i));
    GenerateOptions options{.max_new_tokens = 60};
    options.sampling.temperature = 0;
    const std::vector<uint64_t> keys = draw_keys(0, prompts);
    std::vector<int64_t> num_new(prompts.size(), 0);
    const auto ends = [&](int64_t prompt, int32_t /*token*/) {
      return ++num_new[static_cast<size_t>(prompt)] == 4 + 8 * ((prompt + 3) % 7);
    };
    const auto together = generate(small.model(), prompts, keys, options, kDecodeDevice, ends);
    for (size_t i = 0; i < prompts.size(); ++i) {
      CAPTURE(i);
      const auto alone = generate(small.model(), {prompts[i]}, {keys[i]}, options, kDecodeDevice);
      REQUIRE(alone[0].tokens.size() == 60);
      CHECK(together[i].tokens.size() == 4 + 8 * ((i + 3) % 7));
      const auto count = static_cast<std::ptrdiff_t>(together[i].tokens.size());
      CHECK(together[i].tokens == TokenIds(alone[0].tokens.begin(), alone[0].tokens.begin() + count));
    }
  }
}

}  // namespace decode_cuda_test
}  // namespace osdn::model
