// Decoding on the GPU: a prompt read at once, then single tokens through the step kernel, against one pass
// over all of them; every backbone, plain and preconditioned.
#include <vector>

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

}  // namespace decode_cuda_test
}  // namespace osdn::model
