#include "base/error.h"
#include "kernels/delta_rule_channel.h"

namespace osdn::kernels {

namespace delta_rule_channel_nocuda_detail {

[[noreturn]] void refuse() { throw EnvironmentError("delta_rule: this program was built without CUDA"); }

}  // namespace delta_rule_channel_nocuda_detail

void launch(const DeltaRuleChannelPrepareArgs&, CUstream_st*) { delta_rule_channel_nocuda_detail::refuse(); }
void launch(const DeltaRuleChannelGradientsArgs&, CUstream_st*) {
  delta_rule_channel_nocuda_detail::refuse();
}

}  // namespace osdn::kernels
