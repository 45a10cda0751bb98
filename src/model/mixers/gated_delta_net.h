// Gated DeltaNet, plain or with OSDN: DeltaNet whose memory decays by one learned factor a token and value
// head before each write. Grouped value heads, wider values, output norm gated by swish (or plain).
#pragma once

#include "model/mixer.h"

namespace osdn::model {

std::vector<ParameterSpec> gated_delta_net_specs(const config::Model& config, int64_t layer, int64_t& group);

std::unique_ptr<Mixer> make_gated_delta_net(const config::Model& config, int64_t layer,
                                            const WeightSource& weights);

}  // namespace osdn::model
