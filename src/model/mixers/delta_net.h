// DeltaNet, plain or with OSDN: fused q,k,v,beta projection, short convolution with SiLU, delta rule with
// L2-normalised q and k, output norm per head (gated by swish with model.use_gate), output projection.
#pragma once

#include "model/mixer.h"

namespace osdn::model {

std::vector<ParameterSpec> delta_net_specs(const config::Model& config, int64_t layer, int64_t& group);

std::unique_ptr<Mixer> make_delta_net(const config::Model& config, int64_t layer,
                                      const WeightSource& weights);

}  // namespace osdn::model
