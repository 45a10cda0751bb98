#include "model/generate.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "tests/model/small_model.h"
#include "tests/support/test.h"

namespace osdn::model {
namespace generate_test {

using test::SmallModel;

SmallModel small_model(bool osdn, bool own_gate) {
  return SmallModel(test::small_config(osdn, own_gate), at::kCPU, /*training=*/false);
}

TokenIds random_tokens(int64_t count, uint64_t seed) {
  const at::Tensor ids = test::random_ids(count, seed);
  return {ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + count};
}

TokenIds part(const TokenIds& tokens, int64_t begin, int64_t end) {
  return {tokens.begin() + begin, tokens.begin() + end};
}

TokenIds joined(TokenIds first, const TokenIds& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Logits [N, V] of one forward pass over the whole sequence, without any state.
at::Tensor full_logits(const LanguageModel& model, const TokenIds& tokens) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()), at::kLong);
  ForwardCall call{.sequences = ops::Sequences::make({0, ids.numel()}, at::kCPU)};
  return model.logits(model.hidden(ids, call));
}

SmallModel small_model(const config::Model& model) { return SmallModel(model, at::kCPU, /*training=*/false); }

/// A test case that calls it runs for each of them.
config::Model one_of_each_backbone() {
  using config::Retention;
  return GENERATE(test::small_config(true, true),
                  test::with_osdn(test::small_gated_delta_net(), Retention::kStateGate),
                  test::with_osdn(test::small_kda(), Retention::kOwnGate), test::small_transformer());
}

/// Softmax attention adds up in another order when keys come in pieces: equal to rounding, not to the bit.
bool has_attention(const config::Model& model) {
  return config::is_attention_layer(model, 0) || config::is_attention_layer(model, 1);
}

void check_tensors(const char* name, const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  CHECK(actual.defined() == expected.defined());
  if (expected.defined()) test::check_close(name, actual, expected, tolerance);
}

void check_states(const DecodeState& actual, const DecodeState& expected, double tolerance) {
  REQUIRE(actual.layers.size() == expected.layers.size());
  CHECK(actual.num_tokens == expected.num_tokens);
  for (size_t layer = 0; layer < actual.layers.size(); ++layer) {
    const MixerState& a = actual.layers[layer];
    const MixerState& e = expected.layers[layer];
    check_tensors("S", a.recurrent, e.recurrent, tolerance);
    check_tensors("conv", a.conv, e.conv, tolerance);
    check_tensors("d", a.scale, e.scale, tolerance);
    CHECK(a.num_read == e.num_read);
    REQUIRE(a.keys.size() == e.keys.size());
    for (size_t s = 0; s < a.keys.size(); ++s) {
      check_tensors("keys", a.keys[s], e.keys[s], tolerance);
      check_tensors("values", a.values[s], e.values[s], tolerance);
    }
  }
}

bool same_bits(const DecodeState& a, const DecodeState& b) {
  const auto equal = [](const at::Tensor& x, const at::Tensor& y) {
    return x.defined() == y.defined() && (!x.defined() || at::equal(x, y));
  };
  bool same = a.num_tokens == b.num_tokens && equal(a.hidden, b.hidden) && a.layers.size() == b.layers.size();
  for (size_t i = 0; same && i < a.layers.size(); ++i)
    same = equal(a.layers[i].recurrent, b.layers[i].recurrent) && equal(a.layers[i].conv, b.layers[i].conv) &&
           equal(a.layers[i].scale, b.layers[i].scale) && a.layers[i].num_read == b.layers[i].num_read &&
           a.layers[i].keys.size() == b.layers[i].keys.size();
  for (size_t i = 0; same && i < a.layers.size(); ++i)
    for (size_t s = 0; same && s < a.layers[i].keys.size(); ++s)
      same = equal(a.layers[i].keys[s], b.layers[i].keys[s]) &&
             equal(a.layers[i].values[s], b.layers[i].values[s]);
  return same;
}

std::vector<Continuation> run(const LanguageModel& model, const std::vector<TokenIds>& prompts,
                              const GenerateOptions& options, const TokenCallback& on_token = {}) {
  return generate(model, prompts, draw_keys(options.seed, prompts), options, at::kCPU, on_token);
}

GenerateOptions greedy(int64_t max_new_tokens) {
  return {.sampling = {.temperature = 0}, .max_new_tokens = max_new_tokens};
}

TEST_CASE("prefill then single tokens give the full forward's logits at every position", "[generate]") {
  for (const test::Variant& variant : test::variants()) {
    const SmallModel small = small_model(variant.model);
    INFO(variant.name);
    const bool is_thorough =
        variant.model.osdn && variant.model.osdn->retention == config::Retention::kOwnGate;
    const std::vector<int64_t> lengths =
        is_thorough ? std::vector<int64_t>{2, 5, 63, 64, 65, 130} : std::vector<int64_t>{2, 66};
    for (const int64_t length : lengths) {
      const TokenIds tokens = random_tokens(length, 11);
      const at::Tensor expected = full_logits(small.model(), tokens);
      const DecodeState whole = prefill(small.model(), {tokens}, at::kCPU);
      for (const int64_t prompt : {length - 1, int64_t{1}}) {
        INFO("prompt of " << prompt << " of " << length << " tokens");
        DecodeState state = prefill(small.model(), {part(tokens, 0, prompt)}, at::kCPU);
        double worst = 0;
        bool same_choice = true;
        for (int64_t position = prompt - 1;; ++position) {
          const at::Tensor logits = next_logits(small.model(), state)[0];
          worst = std::max(worst, (logits - expected[position]).abs().max().item<double>());
          same_choice = same_choice && logits.argmax().equal(expected[position].argmax());
          if (position + 1 == length) break;
          step(small.model(), {tokens[static_cast<size_t>(position) + 1]}, &state);
        }
        CHECK(worst < 1e-4);
        CHECK(same_choice);
        check_states(state, whole, 1e-5);
      }
    }
  }
}

TEST_CASE("a sequence read in pieces equals one pass at every cut", "[generate]") {
  for (const test::Variant& variant : test::variants()) {
    const SmallModel each = small_model(variant.model);
    const TokenIds tokens = random_tokens(90, 5);
    const DecodeState whole = prefill(each.model(), {tokens}, at::kCPU);
    for (const int64_t cut : {1, 2, 3, 4, 64, 89}) {
      DecodeState state = prefill(each.model(), {part(tokens, 0, cut)}, at::kCPU);
      extend(each.model(), {part(tokens, cut, 90)}, &state);
      INFO(variant.name << " cut at " << cut);
      test::check_close("hidden", state.hidden, whole.hidden, 1e-5);
      check_states(state, whole, 1e-5);
    }
  }
  const SmallModel small = small_model(true, true);
  const TokenIds tokens = random_tokens(512, 5);
  const DecodeState whole = prefill(small.model(), {tokens}, at::kCPU);
  DecodeState state = prefill(small.model(), {part(tokens, 0, 1)}, at::kCPU);
  int64_t begin = 1;
  for (const int64_t end : {3, 4, 70, 71, 300, 512}) {
    extend(small.model(), {part(tokens, begin, end)}, &state);
    begin = end;
  }
  check_states(state, whole, 1e-5);
}

TEST_CASE("prompts read in bounded slices and groups have the bits of one pass", "[generate]") {
  const std::vector<TokenIds> prompts = {random_tokens(300, 1), random_tokens(3, 2), random_tokens(130, 3)};
  const std::vector<TokenIds> more = {random_tokens(70, 4), {}, random_tokens(5, 5)};
  for (const test::Variant& variant : test::variants()) {
    INFO(variant.name);
    const SmallModel small = small_model(variant.model);
    DecodeState whole = prefill(small.model(), prompts, at::kCPU);
    extend(small.model(), more, &whole);
    for (const int64_t tokens_at_once : {1, 384, 600}) {
      DecodeState sliced = prefill(small.model(), prompts, at::kCPU, tokens_at_once);
      extend(small.model(), more, &sliced, tokens_at_once);
      if (has_attention(variant.model))
        check_states(sliced, whole, 1e-5);
      else
        CHECK(same_bits(sliced, whole));
    }
  }
}

TEST_CASE("a prompt's state and logits have the same bits alone and beside others", "[generate]") {
  for (const test::Variant& variant : test::variants()) {
    INFO(variant.name);
    const SmallModel small = small_model(variant.model);
    std::vector<TokenIds> prompts;
    for (const int64_t length : {7, 1, 64, 65, 3}) prompts.push_back(random_tokens(length, 20 + length));
    DecodeState together = prefill(small.model(), prompts, at::kCPU);
    std::vector<DecodeState> alone;
    for (const TokenIds& prompt : prompts) alone.push_back(prefill(small.model(), {prompt}, at::kCPU));
    for (int64_t round = 0; round < 3; ++round) {
      const at::Tensor logits = next_logits(small.model(), together);
      TokenIds next;
      for (size_t i = 0; i < prompts.size(); ++i) {
        INFO("prompt " << i << ", round " << round);
        CHECK(same_bits(select(together, {static_cast<int64_t>(i)}), alone[i]));
        CHECK(at::equal(logits[static_cast<int64_t>(i)], next_logits(small.model(), alone[i])[0]));
        next.push_back(static_cast<int32_t>(3 * i + static_cast<size_t>(round)));
        step(small.model(), {next.back()}, &alone[i]);
      }
      step(small.model(), next, &together);
    }
  }
}

TEST_CASE("continuations do not depend on the batch, greedy or sampled", "[generate]") {
  const config::Model model = one_of_each_backbone();
  const SmallModel small = small_model(model);
  const std::vector<TokenIds> prompts = {
      {1, 2, 3}, {4}, random_tokens(70, 8), {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}};
  for (const double temperature : {0.0, 1.0}) {
    const GenerateOptions options{
        .sampling = {.temperature = temperature}, .max_new_tokens = 20, .seed = 17, .stop_tokens = {13}};
    const auto together = run(small.model(), prompts, options);
    const auto backwards = run(small.model(), {prompts.rbegin(), prompts.rend()}, options);
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto alone = run(small.model(), {prompts[i]}, options);
      CHECK(alone[0].tokens == together[i].tokens);
      CHECK(alone[0].finish == together[i].finish);
      CHECK(backwards[prompts.size() - 1 - i].tokens == together[i].tokens);
    }
  }
}

TEST_CASE("a repeated prompt draws anew, another seed too", "[generate]") {
  const SmallModel small = small_model(true, false);
  const std::vector<TokenIds> prompts = {{1, 2}, {1, 2}, {3}};
  GenerateOptions options{.max_new_tokens = 30, .seed = 5};
  const auto first = run(small.model(), prompts, options);
  CHECK(first[0].tokens != first[1].tokens);
  CHECK(run(small.model(), prompts, options)[1].tokens == first[1].tokens);
  options.seed = 6;
  CHECK(run(small.model(), prompts, options)[0].tokens != first[0].tokens);
}

TEST_CASE("greedy decoding picks the most likely token of the full forward", "[generate]") {
  const SmallModel small = small_model(true, false);
  TokenIds sequence = {3, 1, 4};
  const Continuation found = run(small.model(), {sequence}, greedy(8))[0];
  REQUIRE(found.tokens.size() == 8);
  CHECK(found.finish == Finish::kLength);
  for (const int32_t token : found.tokens) {
    CHECK(full_logits(small.model(), sequence)[-1].argmax().item<int64_t>() == token);
    sequence.push_back(token);
  }
}

TEST_CASE("nothing stays behind from an earlier request", "[generate]") {
  const SmallModel small = small_model(one_of_each_backbone());
  const GenerateOptions options{.max_new_tokens = 20, .seed = 2};
  const std::vector<TokenIds> a = {random_tokens(30, 1)};
  const std::vector<TokenIds> b = {random_tokens(50, 2), {1}};
  const auto first = run(small.model(), a, options);
  run(small.model(), b, options);
  // One that was given up in the middle.
  int64_t calls = 0;
  run(small.model(), b, options, [&](int64_t, int32_t) { return ++calls > 3; });
  CHECK(run(small.model(), a, options)[0].tokens == first[0].tokens);
}

TEST_CASE("a saved prefix is continued many times, each as if it had been read afresh", "[generate]") {
  const SmallModel small = small_model(one_of_each_backbone());
  const TokenIds prefix = random_tokens(50, 3);
  const std::vector<TokenIds> suffixes = {random_tokens(20, 4), random_tokens(33, 5)};
  const DecodeState saved = prefill(small.model(), {prefix}, at::kCPU);
  for (const auto& [first, second] : {std::pair<size_t, size_t>{0, 1}, {1, 0}})
    for (const size_t i : {first, second}) {
      DecodeState state = saved;
      extend(small.model(), {suffixes[i]}, &state);
      step(small.model(), {7}, &state);
      const DecodeState fresh = prefill(small.model(), {joined(joined(prefix, suffixes[i]), {7})}, at::kCPU);
      test::check_close("hidden", state.hidden, fresh.hidden, 1e-5);
      check_states(state, fresh, 1e-5);
      CHECK(same_bits(saved, prefill(small.model(), {prefix}, at::kCPU)));
    }
  // Both at once, from one row selected twice; a sequence without new tokens keeps its state.
  DecodeState both = select(saved, {0, 0, 0});
  extend(small.model(), {suffixes[0], {}, suffixes[1]}, &both);
  CHECK(both.num_tokens == std::vector<int64_t>{70, 50, 83});
  CHECK(same_bits(select(both, {1}), saved));
  DecodeState alone = saved;
  extend(small.model(), {suffixes[1]}, &alone);
  CHECK(same_bits(select(both, {2}), alone));
}

TEST_CASE("a stop token or the callback ends one sequence and not the others", "[generate]") {
  const SmallModel small = small_model(true, false);
  const std::vector<TokenIds> prompts = {{1, 2, 3}, {7, 7}};
  const auto free = run(small.model(), prompts, greedy(6));
  const auto stopped =
      run(small.model(), prompts, greedy(6), [](int64_t prompt, int32_t) { return prompt == 0; });
  CHECK(stopped[0].tokens == TokenIds{free[0].tokens[0]});
  CHECK(stopped[0].finish == Finish::kCallback);
  CHECK(stopped[1].tokens == free[1].tokens);
  GenerateOptions with_stop = greedy(6);
  with_stop.stop_tokens = {-1, free[1].tokens[0]};
  const Continuation ended = run(small.model(), {prompts[1]}, with_stop)[0];
  CHECK(ended.tokens == TokenIds{free[1].tokens[0]});
  CHECK(ended.finish == Finish::kStopToken);
  CHECK(run(small.model(), prompts, greedy(0))[1].tokens.empty());
  CHECK(run(small.model(), {}, greedy(3)).empty());
}

TEST_CASE("the state of a sequence has the same size after 1 and after 100 tokens", "[generate]") {
  const SmallModel small = small_model(true, false);
  const DecodeState two = prefill(small.model(), {{5}, random_tokens(100, 1)}, at::kCPU);
  // Two layers of 2 heads x (16 x 16 + 16) floats and 3 x 32 channels x 4 taps.
  CHECK(state_bytes(two) == 2 * 4 * (2 * (16 * 16 + 16) + 3 * 32 * 4));
  CHECK(state_bytes(two) == state_bytes(prefill(small.model(), {{5}}, at::kCPU)));
}

TEST_CASE("the state of softmax attention grows with the text up to its window", "[generate]") {
  config::Model model = test::small_gated_delta_net();
  const uint64_t memory =
      state_bytes(prefill(small_model(model).model(), {{5}}, at::kCPU)) / 2;  // of a layer
  model.attention.layers = {1};
  model.attention.window_size = 9;
  const SmallModel small = small_model(model);
  const auto bytes_after = [&](int64_t tokens) {
    return state_bytes(prefill(small.model(), {random_tokens(tokens, 1)}, at::kCPU));
  };
  // Keys and values of 32 floats; the newest token sees 8 before it.
  CHECK(bytes_after(3) == memory + 2 * 4 * 32 * 3);
  CHECK(bytes_after(8) == memory + 2 * 4 * 32 * 8);
  CHECK(bytes_after(100) == bytes_after(8));
}

TEST_CASE("prompts that cannot be decoded are refused", "[generate]") {
  const SmallModel small = small_model(false, false);
  CHECK_THROWS_AS(run(small.model(), {{}}, {}), UserError);
  CHECK_THROWS_AS(run(small.model(), {{test::kSmallVocab}}, {}), UserError);
  CHECK_THROWS_AS(run(small.model(), {{-1}}, {}), UserError);
  CHECK_THROWS_AS(run(small.model(), {{1}}, {.sampling = {.top_p = -1}}), UserError);
}

TEST_CASE("logits that are no numbers end a batch with an error, whichever thread draws from them",
          "[generate]") {
  SmallModel small = small_model(true, false);
  small.arena().master("model.norm.weight").fill_(std::nan(""));
  CHECK_THROWS_AS(run(small.model(), {{1}, {2, 3}, {4}, {5}}, greedy(4)), DataError);
}

TEST_CASE("on CUDA decoding equals the CPU's full forward in float32", "[generate][cuda]") {
  REQUIRE(at::hasCUDA());
  const std::vector<TokenIds> prompts = {random_tokens(70, 1), {3}, random_tokens(17, 2)};
  for (const test::Variant& variant : test::variants()) {
    INFO(variant.name);
    const SmallModel host = small_model(variant.model);
    const SmallModel device(variant.model, at::kCUDA, /*training=*/false);
    DecodeState state = prefill(device.model(), prompts, at::kCUDA, 64);
    for (int64_t i = 0; i < 5; ++i) step(device.model(), {1, 2, 3}, &state);
    const at::Tensor logits = next_logits(device.model(), state);
    for (size_t i = 0; i < prompts.size(); ++i) {
      const TokenIds all = joined(prompts[i], TokenIds(5, static_cast<int32_t>(i) + 1));
      test::check_close("logits", logits[static_cast<int64_t>(i)], full_logits(host.model(), all)[-1], 1e-4);
    }
  }
}

}  // namespace generate_test
}  // namespace osdn::model
