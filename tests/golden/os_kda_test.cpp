// KDA with the paper authors' preconditioner (beta-aware rule, eta 0.3, box [0, 1.2], learned start).
#include "tests/golden/golden_check.h"

namespace osdn::test::os_kda_test {

// The authors' KDA kernels round what lies between: 2.3e-4 was seen for the logits of a float64 recurrence.
constexpr GoldenTolerance kTolerance{.logits = 1e-3, .gradients = 1e-2};

TEST_CASE("the authors' OS-KDA weights give the authors' logits, loss and every gradient", "[os_kda]") {
  check_golden("os_kda", at::kCPU, kTolerance);
}

TEST_CASE("the authors' OS-KDA weights give the authors' logits, loss and every gradient on the GPU",
          "[os_kda][cuda]") {
  check_golden("os_kda", at::kCUDA, kTolerance);
}

}  // namespace osdn::test::os_kda_test
