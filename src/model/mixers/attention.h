// Causal softmax attention with rotary embedding, sliding window and grouped keys and values: the layers of
// model.attention and the backbone transformer. What it carries while decoding grows with the text, up to the
// window.
#pragma once

#include "model/mixer.h"

namespace osdn::model {

std::vector<ParameterSpec> attention_specs(const config::Model& config, int64_t layer, int64_t& group);

std::unique_ptr<Mixer> make_attention(const config::Model& config, int64_t layer,
                                      const WeightSource& weights);

}  // namespace osdn::model
