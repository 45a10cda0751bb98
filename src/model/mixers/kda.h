// Kimi Delta Attention, plain or with OSDN: the memory decays per key channel, by a low-rank projection of
// the token, before each write; the output norm is gated by a sigmoid of another low-rank projection.
#pragma once

#include "model/mixer.h"

namespace osdn::model {

std::vector<ParameterSpec> kda_specs(const config::Model& config, int64_t layer, int64_t& group);

std::unique_ptr<Mixer> make_kda(const config::Model& config, int64_t layer, const WeightSource& weights);

}  // namespace osdn::model
