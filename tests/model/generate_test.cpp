#include "model/generate.h"

#include "base/error.h"
#include "tests/model/small_model.h"
#include "tests/support/test.h"

namespace osdn::model {
namespace {

using test::SmallModel;

/// Last hidden states of one sequence, fed in pieces of the given lengths with the state carried over.
at::Tensor in_pieces(const LanguageModel& model, const at::Tensor& ids, const std::vector<int64_t>& lengths,
                     ModelState& state) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  int64_t start = 0;
  for (const int64_t length : lengths) {
    ForwardCall call{.sequences = ops::Sequences::make({0, length}, at::kCPU), .state = &state};
    parts.push_back(model.hidden(ids.narrow(0, start, length), call));
    start += length;
  }
  return at::cat(parts);
}

TEST_CASE("prefill then single tokens equals one forward at every position and in the state", "[generate]") {
  for (const auto& [osdn, own_gate] : {std::pair{false, false}, {true, false}, {true, true}}) {
    const SmallModel small(test::small_config(osdn, own_gate));
    for (const int64_t length : {2, 5, 63, 64, 65, 130}) {
      const at::Tensor ids = test::random_ids(length, 11);
      ModelState whole_state;
      const at::Tensor whole = in_pieces(small.model(), ids, {length}, whole_state);
      std::vector<std::vector<int64_t>> splits = {{length - 1, 1},
                                                  std::vector<int64_t>(static_cast<size_t>(length), 1)};
      if (length > 4) splits.push_back({1, 2, length - 4, 1});
      for (const auto& split : splits) {
        ModelState state;
        test::check_close("hidden", in_pieces(small.model(), ids, split, state), whole, 1e-5);
        for (size_t layer = 0; layer < state.size(); ++layer) {
          test::check_close("S", state[layer].recurrent, whole_state[layer].recurrent, 1e-5);
          test::check_close("conv", state[layer].conv, whole_state[layer].conv, 1e-5);
          if (osdn) test::check_close("d", state[layer].scale, whole_state[layer].scale, 1e-5);
        }
      }
    }
  }
}

TEST_CASE("a greedy continuation does not depend on what else is in the batch", "[generate]") {
  const SmallModel small(test::small_config(true, true));
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}};
  const SamplingOptions greedy{.max_new_tokens = 12, .temperature = 0};
  const auto together = generate(small.model(), prompts, greedy, at::kCPU);
  for (size_t i = 0; i < prompts.size(); ++i)
    CHECK(generate(small.model(), {prompts[i]}, greedy, at::kCPU)[0] == together[i]);
  // And nothing stays behind from an earlier call.
  CHECK(generate(small.model(), prompts, greedy, at::kCPU) == together);
}

TEST_CASE("greedy decoding picks the most likely token of the full forward", "[generate]") {
  const SmallModel small(test::small_config(true, false));
  std::vector<int32_t> sequence = {3, 1, 4};
  const auto continuation =
      generate(small.model(), {sequence}, {.max_new_tokens = 8, .temperature = 0}, at::kCPU)[0];
  REQUIRE(continuation.size() == 8);
  for (const int32_t token : continuation) {
    const at::NoGradGuard no_grad;
    const at::Tensor ids = at::tensor(std::vector<int64_t>(sequence.begin(), sequence.end()), at::kLong);
    ForwardCall call{.sequences = ops::Sequences::make({0, ids.numel()}, at::kCPU)};
    const at::Tensor logits = small.model().logits(small.model().hidden(ids, call))[-1];
    CHECK(logits.argmax().item<int64_t>() == token);
    sequence.push_back(token);
  }
}

TEST_CASE("a stop token or the callback ends one sequence and not the others", "[generate]") {
  const SmallModel small(test::small_config(true, false));
  const SamplingOptions greedy{.max_new_tokens = 6, .temperature = 0};
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {7, 7}};
  const auto free = generate(small.model(), prompts, greedy, at::kCPU);
  const auto stopped =
      generate(small.model(), prompts, greedy, at::kCPU, [](int64_t prompt, int32_t) { return prompt == 0; });
  CHECK(stopped[0] == std::vector<int32_t>{free[0][0]});
  CHECK(stopped[1] == free[1]);
  SamplingOptions with_stop = greedy;
  with_stop.stop_token = free[1][0];
  CHECK(generate(small.model(), {prompts[1]}, with_stop, at::kCPU)[0] == std::vector<int32_t>{free[1][0]});
}

TEST_CASE("the state of a sequence has the same size after 1 and after 100 tokens", "[generate]") {
  const SmallModel small(test::small_config(true, false));
  ModelState short_state;
  ModelState long_state;
  in_pieces(small.model(), test::random_ids(1, 1), {1}, short_state);
  in_pieces(small.model(), test::random_ids(100, 1), {100}, long_state);
  // Two layers of 2 heads x (16 x 16 + 16) floats and 3 x 32 channels x 4 taps.
  CHECK(state_bytes(short_state) == 2 * 4 * (2 * (16 * 16 + 16) + 3 * 32 * 4));
  CHECK(state_bytes(long_state) == state_bytes(short_state));
}

TEST_CASE("sampling obeys temperature, top-k, top-p and the repetition penalty", "[generate]") {
  const at::Tensor logits = at::tensor(std::vector<float>{2.0f, 1.0f, 0.0f, -1.0f});
  const auto counts = [&](const SamplingOptions& options, const std::vector<int32_t>& present = {}) {
    std::vector<double> share(4);
    for (int64_t draw = 0; draw < 20000; ++draw)
      share[sample_token(logits, options, present, draw)] += 1.0 / 20000;
    return share;
  };
  const at::Tensor p = logits.softmax(0);
  const auto plain = counts({.seed = 1});
  for (int64_t i = 0; i < 4; ++i) CHECK(plain[i] == Approx(p[i].item<double>()).margin(0.01));
  const auto cold = counts({.temperature = 0.5, .seed = 1});
  CHECK(cold[0] == Approx((logits * 2).softmax(0)[0].item<double>()).margin(0.01));
  const auto top_two = counts({.top_k = 2, .seed = 1});
  CHECK(top_two[0] + top_two[1] == Approx(1.0));
  CHECK(top_two[1] > 0.2);
  CHECK(counts({.top_p = 0.6, .seed = 1})[0] == Approx(1.0));
  CHECK(sample_token(logits, {.temperature = 0, .repetition_penalty = 3.0}, {0}, 0) == 1);
  CHECK(sample_token(logits, {.seed = 9}, {}, 4) == sample_token(logits, {.seed = 9}, {}, 4));
}

TEST_CASE("prompts that can't be decoded are refused", "[generate]") {
  const SmallModel small(test::small_config(false, false));
  CHECK_THROWS_AS(generate(small.model(), {{}}, {}, at::kCPU), UserError);
  CHECK_THROWS_AS(generate(small.model(), {{test::kSmallVocab}}, {}, at::kCPU), UserError);
}

}  // namespace
}  // namespace osdn::model
