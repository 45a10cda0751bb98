#include "model/mixer.h"

#include "base/error.h"
#include "model/mixers/delta_net.h"

namespace osdn::model {

std::vector<ParameterSpec> mixer_specs(const config::Model& config, int64_t layer, int64_t& group) {
  switch (config.backbone) {
    case config::Backbone::kDeltaNet:
      return delta_net_specs(config, layer, group);
    case config::Backbone::kGatedDeltaNet:
    case config::Backbone::kKda:
      break;
  }
  throw InternalError("mixer_specs: configuration validation admits no such backbone");
}

std::unique_ptr<Mixer> make_mixer(const config::Model& config, int64_t layer, const WeightSource& weights) {
  switch (config.backbone) {
    case config::Backbone::kDeltaNet:
      return make_delta_net(config, layer, weights);
    case config::Backbone::kGatedDeltaNet:
    case config::Backbone::kKda:
      break;
  }
  throw InternalError("make_mixer: configuration validation admits no such backbone");
}

}  // namespace osdn::model
