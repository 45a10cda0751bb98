// Decoding on the GPU: a prompt read at once, then single tokens through the step kernel, against one pass
// over all of them; every backbone, plain and preconditioned.
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

TEST_CASE("on the GPU, sequences that end at different times get the tokens that each gets alone",
          "[decode_cuda][cuda]") {
  for (const test::Variant& variant : test::variants()) {
    CAPTURE(variant.name);
    const SmallModel small(variant.model, kDecodeDevice, /*training=*/false, at::kFloat);
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
