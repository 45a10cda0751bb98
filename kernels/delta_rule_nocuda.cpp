#include "base/error.h"
#include "kernels/delta_rule.h"

namespace osdn::kernels {

namespace delta_rule_nocuda_detail {

[[noreturn]] void refuse() { throw EnvironmentError("delta_rule: this program was built without CUDA"); }

}  // namespace delta_rule_nocuda_detail

bool delta_rule_takes_wide_keys() { return false; }
void launch(const DeltaRulePrepareArgs&, CUstream_st*) { delta_rule_nocuda_detail::refuse(); }
void launch(const DeltaRuleForwardArgs&, CUstream_st*) { delta_rule_nocuda_detail::refuse(); }
void launch(const DeltaRuleBackwardScanArgs&, CUstream_st*) { delta_rule_nocuda_detail::refuse(); }
void launch(const DeltaRuleBackwardGradientsArgs&, CUstream_st*) { delta_rule_nocuda_detail::refuse(); }

}  // namespace osdn::kernels
