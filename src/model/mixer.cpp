#include "model/mixer.h"

#include "base/error.h"
#include "model/mixers/attention.h"
#include "model/mixers/delta_net.h"
#include "model/mixers/gated_delta_net.h"
#include "model/mixers/kda.h"

namespace osdn::model {
namespace mixer_detail {

/// What a mixer consists of: its parameters and its maker.
struct Family {
  std::vector<ParameterSpec> (*specs)(const config::Model&, int64_t layer, int64_t& group);
  std::unique_ptr<Mixer> (*make)(const config::Model&, int64_t layer, const WeightSource&);
};

Family family_of(const config::Model& config, int64_t layer) {
  if (config::is_attention_layer(config, layer)) return {attention_specs, make_attention};
  switch (config.backbone) {
    case config::Backbone::kDeltaNet:
      return {delta_net_specs, make_delta_net};
    case config::Backbone::kGatedDeltaNet:
      return {gated_delta_net_specs, make_gated_delta_net};
    case config::Backbone::kKda:
      return {kda_specs, make_kda};
    case config::Backbone::kTransformer:
      break;  // every layer is one of attention
  }
  throw InternalError("mixer: no mixer for this backbone");
}

}  // namespace mixer_detail

std::vector<ParameterSpec> mixer_specs(const config::Model& config, int64_t layer, int64_t& group) {
  return mixer_detail::family_of(config, layer).specs(config, layer, group);
}

std::unique_ptr<Mixer> make_mixer(const config::Model& config, int64_t layer, const WeightSource& weights) {
  return mixer_detail::family_of(config, layer).make(config, layer, weights);
}

}  // namespace osdn::model
