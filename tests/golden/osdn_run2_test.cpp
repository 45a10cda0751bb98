// DeltaNet with the paper authors' preconditioner (beta-free rule, eta 1, box [0, 2], learned start).
#include "tests/golden/golden_check.h"

namespace osdn::test::osdn_run2_test {

// The authors' kernels evaluate in fp32 with other summation orders: 8.8e-7 was seen for the logits of a
// float64 recurrence.
constexpr GoldenTolerance kTolerance{.logits = 1e-4, .gradients = 1e-3};

TEST_CASE("the authors' OSDN weights give the authors' logits, loss and every gradient", "[osdn_run2]") {
  check_golden("osdn_run2", at::kCPU, kTolerance);
}

TEST_CASE("the authors' OSDN weights give the authors' logits, loss and every gradient on the GPU",
          "[osdn_run2][cuda]") {
  check_golden("osdn_run2", at::kCUDA, kTolerance);
}

}  // namespace osdn::test::osdn_run2_test
