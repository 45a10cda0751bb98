// A token mixer: what stands where a transformer has attention. One implementation per backbone in mixers/,
// chosen by make_mixer. Packed tokens in, packed tokens out; the state carried between calls is the mixer's
// own.
#pragma once

#include <memory>
#include <vector>

#include "config/config.h"
#include "ops/sequences.h"
#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::model {

// N: packed tokens; S: sequences; D: hidden size; HV, K, V: value heads, key and value head size; C: conv
// channels; W: conv taps; L, HK, d: cached tokens, heads and head size of softmax attention.

/// What one layer carries from token to token. Undefined members: the start of a sequence.
struct MixerState {
  at::Tensor recurrent;  // [S, HV, K, V] fp32, the associative memory
  at::Tensor scale;      // [S, HV, K] fp32, the preconditioner d; undefined without OSDN
  at::Tensor conv;       // [S, C, W] compute dtype, the last inputs of the convolution
  // Softmax attention: per sequence [L, HK, d], the keys (rotated) and values that a later token can see.
  std::vector<at::Tensor> keys;
  std::vector<at::Tensor> values;
  std::vector<int64_t> num_read;  // tokens so far, per sequence
};

/// One call of a layer.
struct MixerCall {
  ops::SequencesPtr sequences;
  MixerState* state = nullptr;      // read and replaced when given (decoding, carried documents); else every
                                    // sequence starts afresh and nothing is kept
  bool single_tokens = false;       // every sequence has one, as in decoding step by step
  bool overwrite_state = false;     // tensors of `state` may be written in place: nobody else has them
  bool collect_statistics = false;  // fill `statistics` (ops/residual_stats.h)
  at::Tensor statistics;            // [kNumResidualTerms] float64; undefined for mixers without a delta rule
};

class Mixer {
 public:
  virtual ~Mixer() = default;
  /// x [N, D] normalised input; returns [N, D].
  virtual at::Tensor forward(const at::Tensor& x, MixerCall& call) const = 0;
};

/// Parameters of layer `layer`'s mixer in forward order, named below model.layers.<layer>.attn. `group` is
/// the next free group number and is advanced.
std::vector<ParameterSpec> mixer_specs(const config::Model& config, int64_t layer, int64_t& group);

std::unique_ptr<Mixer> make_mixer(const config::Model& config, int64_t layer, const WeightSource& weights);

}  // namespace osdn::model
