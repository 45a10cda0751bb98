#include "base/error.h"
#include "kernels/delta_rule_step.h"

namespace osdn::kernels {

void launch(const DeltaRuleStepArgs&, CUstream_st*) {
  throw EnvironmentError("delta_rule: this program was built without CUDA");
}

}  // namespace osdn::kernels
