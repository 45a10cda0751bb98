#include "model/mixers/kda.h"

#include "tests/model/backbone_check.h"

namespace osdn::test::kda_test {

TEST_CASE("kda equals the token recurrence in logits, loss and every gradient", "[kda]") {
  for (const Variant& variant : variants_of("kda")) check_against_recurrence(variant);
}

TEST_CASE("kda in bf16 equals float32 roughly", "[kda]") {
  for (const Variant& variant : variants_of("kda")) check_in_bf16(variant, at::kCPU);
}

TEST_CASE("kda with OSDN that takes no step has the bits of the plain backbone", "[kda]") {
  check_no_step_is_plain(small_kda());
}

TEST_CASE("kda has the tensors of the peer's checkpoints", "[kda]") {
  config::Model model;
  model.backbone = config::Backbone::kKda;
  model.num_layers = 1;
  model.value_expand = 2;
  CHECK(mixer_tensors(model) == std::vector<std::string>{
                                    "A_log [8]",
                                    "b_proj.weight [8, 1024]",
                                    "dt_bias [1024]",
                                    "f_proj.0.weight [256, 1024]",
                                    "f_proj.1.weight [1024, 256]",
                                    "g_proj.0.weight [256, 1024]",
                                    "g_proj.1.bias [2048]",
                                    "g_proj.1.weight [2048, 256]",
                                    "k_conv1d.weight [1024, 1, 4]",
                                    "k_proj.weight [1024, 1024]",
                                    "o_norm.weight [256]",
                                    "o_proj.weight [1024, 2048]",
                                    "q_conv1d.weight [1024, 1, 4]",
                                    "q_proj.weight [1024, 1024]",
                                    "v_conv1d.weight [2048, 1, 4]",
                                    "v_proj.weight [2048, 1024]",
                                });
}

TEST_CASE("kda starts its decay between 1 and 16, at 1 with the safe gate, and its bias at 0", "[kda]") {
  for (const bool safe : {false, true}) {
    config::Model model;
    model.backbone = config::Backbone::kKda;
    model.num_layers = 1;
    model.num_heads = 512;
    model.head_dim = 2;
    model.safe_gate = safe;
    if (safe) model.gate_lower_bound = -5;
    int64_t found = 0;
    for (const ParameterSpec& spec : model::parameter_specs(model, kSmallVocab)) {
      at::Tensor values = at::full(spec.shape, std::nan(""), at::kFloat);
      model::initialize(spec, 42, values);
      const auto is = [&](const char* name) { return spec.name.find(name) != std::string::npos; };
      if (is("A_log")) {
        CHECK(values.exp().min().item<double>() >= 1);
        CHECK(values.exp().max().item<double>() <= (safe ? 1 : 16));
        CHECK(values.exp().mean().item<double>() == Approx(safe ? 1 : 8.5).margin(0.8));
      }
      if (is("dt_bias")) CHECK(at::softplus(values).max().item<double>() < 0.101);
      if (is("g_proj.1.bias")) CHECK(values.eq(0).all().item<bool>());
      if (!is("A_log") && !is("dt_bias") && !is("g_proj.1.bias")) continue;
      ++found;
      CHECK_FALSE(spec.decay);
      CHECK(spec.full_precision);
    }
    CHECK(found == 3);
  }
}

TEST_CASE("kda on CUDA equals the CPU", "[kda][cuda]") {
  REQUIRE(at::hasCUDA());
  for (const Variant& variant : variants_of("kda")) check_on_cuda(variant);
}

}  // namespace osdn::test::kda_test
