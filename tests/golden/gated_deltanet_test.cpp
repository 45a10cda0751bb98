// Gated DeltaNet of flash-linear-attention.
#include "tests/golden/golden_check.h"

namespace osdn::test::gated_deltanet_test {

// That code uses fast approximations: 5.0e-5 was seen for the logits of a float64 recurrence. It gives no
// gradients: its gated backward was wrong on the GPU that made the file.
constexpr GoldenTolerance kTolerance{.logits = 1e-4, .gradients = 0};

TEST_CASE("flash-linear-attention's Gated DeltaNet weights give its logits and loss", "[gated_deltanet]") {
  check_golden("gated_deltanet", at::kCPU, kTolerance);
}

TEST_CASE("flash-linear-attention's Gated DeltaNet weights give its logits and loss on the GPU",
          "[gated_deltanet][cuda]") {
  check_golden("gated_deltanet", at::kCUDA, kTolerance);
}

}  // namespace osdn::test::gated_deltanet_test
