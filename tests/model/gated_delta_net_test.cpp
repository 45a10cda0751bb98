#include "model/mixers/gated_delta_net.h"

#include "tests/model/backbone_check.h"

namespace osdn::test::gated_delta_net_test {

TEST_CASE("gated_delta_net equals the token recurrence in logits, loss and every gradient",
          "[gated_delta_net]") {
  for (const Variant& variant : variants_of("gated_delta_net")) check_against_recurrence(variant);
}

TEST_CASE("gated_delta_net with OSDN that takes no step has the bits of the plain backbone",
          "[gated_delta_net]") {
  check_no_step_is_plain(small_gated_delta_net());
}

TEST_CASE("gated_delta_net has the tensors of the peer's checkpoints", "[gated_delta_net]") {
  config::Model model;
  model.backbone = config::Backbone::kGatedDeltaNet;
  model.num_layers = 1;
  model.num_heads = 6;
  const std::vector<std::string> gated = {
      "A_log [6]",
      "a_proj.weight [6, 1024]",
      "b_proj.weight [6, 1024]",
      "dt_bias [6]",
      "g_proj.weight [1536, 1024]",
      "k_conv1d.weight [768, 1, 4]",
      "k_proj.weight [768, 1024]",
      "o_norm.weight [256]",
      "o_proj.weight [1024, 1536]",
      "q_conv1d.weight [768, 1, 4]",
      "q_proj.weight [768, 1024]",
      "v_conv1d.weight [1536, 1, 4]",
      "v_proj.weight [1536, 1024]",
  };
  CHECK(mixer_tensors(model) == gated);
  model.use_gate = false;
  std::vector<std::string> ungated = gated;
  ungated.erase(ungated.begin() + 4);
  CHECK(mixer_tensors(model) == ungated);
}

TEST_CASE("gated_delta_net starts its decay as the peer does and keeps it from weight decay",
          "[gated_delta_net]") {
  config::Model model;
  model.backbone = config::Backbone::kGatedDeltaNet;
  model.num_layers = 1;
  model.num_heads = 512;
  model.head_dim = 2;
  for (const ParameterSpec& spec : model::parameter_specs(model, kSmallVocab)) {
    const bool is_rate = spec.name.find("A_log") != std::string::npos;
    const bool is_bias = spec.name.find("dt_bias") != std::string::npos;
    if (!is_rate && !is_bias) continue;
    CHECK_FALSE(spec.decay);
    CHECK(spec.full_precision);
    at::Tensor values = at::empty(spec.shape, at::kFloat);
    model::initialize(spec, 42, values);
    if (is_rate) {  // exp(A) uniform in (0, 16)
      CHECK(values.exp().max().item<double>() < 16);
      CHECK(values.exp().mean().item<double>() == Approx(8).margin(0.8));
    } else {  // softplus(b) log-uniform in [0.001, 0.1]
      const at::Tensor step = at::softplus(values.to(at::kDouble));
      CHECK(step.min().item<double>() > 0.0009);
      CHECK(step.max().item<double>() < 0.101);
      CHECK(step.log().mean().item<double>() == Approx(std::log(0.01)).margin(0.2));
    }
  }
}

TEST_CASE("gated_delta_net on CUDA equals the CPU", "[gated_delta_net][cuda]") {
  REQUIRE(at::hasCUDA());
  for (const Variant& variant : variants_of("gated_delta_net")) check_on_cuda(variant);
}

}  // namespace osdn::test::gated_delta_net_test
