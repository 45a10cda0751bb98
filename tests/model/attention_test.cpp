#include "model/mixers/attention.h"

#include "tests/model/backbone_check.h"

namespace osdn::test::attention_test {

TEST_CASE("the transformer equals a plain one in logits, loss and every gradient", "[attention]") {
  for (const Variant& variant : variants_of("transformer")) check_against_recurrence(variant);
}

TEST_CASE("attention layers have the tensors of the peer's checkpoints", "[attention]") {
  config::Model model;
  model.backbone = config::Backbone::kTransformer;
  model.num_layers = 2;
  CHECK(mixer_tensors(model) ==
        std::vector<std::string>{"k_proj.weight [1024, 1024]", "o_proj.weight [1024, 1024]",
                                 "q_proj.weight [1024, 1024]", "v_proj.weight [1024, 1024]"});
  model.backbone = config::Backbone::kKda;
  model.attention.layers = {1};
  model.attention.num_heads = 16;
  model.attention.num_kv_heads = 4;
  model.attention.qkv_bias = true;
  model.attention.qk_norm = true;
  const std::vector<std::string> hybrid = {
      "k_norm.weight [64]",         "k_proj.bias [256]",  "k_proj.weight [256, 1024]",
      "o_proj.weight [1024, 1024]", "q_norm.weight [64]", "q_proj.bias [1024]",
      "q_proj.weight [1024, 1024]", "v_proj.bias [256]",  "v_proj.weight [256, 1024]"};
  CHECK(mixer_tensors(model, 1) == hybrid);
  CHECK(mixer_tensors(model, 0).size() == 16);  // kda's
}

TEST_CASE("attention's FLOPs grow with the sequence up to the window, a delta rule's do not", "[attention]") {
  config::Model model;
  model.backbone = config::Backbone::kTransformer;
  const auto flops = [&](int64_t length) {
    return model::training_flops_per_token(model, kSmallVocab, length);
  };
  // Of 1 + 2 + ... + T keys a token sees (T + 1) / 2: 12 D each, forward and backward, in 24 layers.
  CHECK(flops(8192) - flops(1024) == Approx(24 * 12.0 * 1024 * (8192 - 1024) / 2));
  model.attention.window_size = 1;
  CHECK(flops(8192) == flops(1024));
  model.backbone = config::Backbone::kKda;
  CHECK(flops(8192) == flops(1024));
}

TEST_CASE("hybrid layers report no residuals, the others do", "[attention]") {
  config::Model model = small_gated_delta_net();
  model.attention.layers = {0};
  const SmallModel small(model);
  const at::NoGradGuard no_grad;
  model::ForwardCall call{.sequences = ops::Sequences::make({0, 20}, at::kCPU), .collect_statistics = true};
  small.model().hidden(random_ids(20, 1), call);
  CHECK(call.statistics.size() == 1);
}

TEST_CASE("attention on CUDA equals the CPU", "[attention][cuda]") {
  REQUIRE(at::hasCUDA());
  for (const Variant& variant : variants_of("transformer")) check_on_cuda(variant);
}

}  // namespace osdn::test::attention_test
