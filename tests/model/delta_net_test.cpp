#include "model/mixers/delta_net.h"

#include "tests/model/backbone_check.h"

namespace osdn::test::delta_net_test {

TEST_CASE("delta_net equals the token recurrence in logits, loss and every gradient", "[delta_net]") {
  for (const Variant& variant : variants_of("delta_net")) check_against_recurrence(variant);
  config::Model model = small_config(false, false);
  model.qk_activation = config::QkActivation::kIdentity;
  check_against_recurrence({"delta_net identity", model});
}

TEST_CASE("delta_net with OSDN that takes no step has the bits of the plain backbone", "[delta_net]") {
  check_no_step_is_plain(small_config(false, false));
}

TEST_CASE("keys and queries without any positive value leave delta_net finite", "[delta_net]") {
  // relu makes whole heads 0: their sum is 0, and so is their norm.
  for (const config::QkNorm norm : {config::QkNorm::kSum, config::QkNorm::kL2}) {
    config::Model model = small_config(false, false);
    model.qk_norm = norm;
    model.qk_activation = config::QkActivation::kRelu;
    SmallModel small(model);
    for (const char* name : {"q_conv1d.weight", "k_conv1d.weight"})
      small.arena().master(std::string("model.layers.0.attn.") + name).zero_();
    model::ForwardCall call{.sequences = ops::Sequences::make({0, 70}, at::kCPU)};
    const at::Tensor loss = small.model().loss(random_ids(70, 1), random_ids(70, 2), call);
    torch::autograd::backward({loss}, {});
    CHECK(at::isfinite(loss).item<bool>());
    CHECK(at::isfinite(small.arena().gradients()).all().item<bool>());
  }
}

TEST_CASE("beta-free OSDN that starts at 1 and forgets nothing is plain delta_net", "[delta_net]") {
  // With unit keys <d, k^2> = 1: the beta-free rule finds nothing to correct.
  config::Model free = with_osdn(small_config(false, false), config::Retention::kNone);
  free.osdn->hypergradient = config::Hypergradient::kBetaFree;
  const SmallModel a(small_config(false, false), at::kCPU, /*training=*/false);
  const SmallModel b(free, at::kCPU, /*training=*/false);
  const at::Tensor ids = random_ids(300, 3);
  const at::NoGradGuard no_grad;
  model::ForwardCall first{.sequences = ops::Sequences::make({0, 300}, at::kCPU)};
  model::ForwardCall second{.sequences = first.sequences};
  const at::Tensor plain = a.model().hidden(ids, first);
  // Keys are units up to the eps inside the root.
  check_close("hidden", b.model().hidden(ids, second), plain, 1e-4);
}

TEST_CASE("delta_net on CUDA equals the CPU", "[delta_net][cuda]") {
  REQUIRE(at::hasCUDA());
  for (const Variant& variant : variants_of("delta_net")) check_on_cuda(variant);
}

}  // namespace osdn::test::delta_net_test
