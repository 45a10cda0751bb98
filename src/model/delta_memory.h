// What the mixers with a delta rule share: OSDN's write key, the write into and the read from the associative
// memory, residual statistics, and the state carried while decoding.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/mixer.h"
#include "model/preconditioner.h"

namespace osdn::model {

/// "model.layers.<layer>.attn.": what the names of a mixer's parameters begin with.
std::string mixer_prefix(int64_t layer);

/// A projection or convolution: normal with the model's standard deviation, decayed.
ParameterSpec matrix_spec(const config::Model& config, std::string name, std::vector<int64_t> shape,
                          int64_t group);

/// A bias or rate of `size` numbers: in fp32, never decayed, a group of its own. `low`, `high`: as the
/// initializer takes them (ParameterSpec::low, scale).
ParameterSpec vector_spec(std::string name, int64_t size, Initializer initializer, double low, double high,
                          int64_t& group);

/// A parameter that is 1 everywhere and never decayed: the weight of a norm over `width` values.
ParameterSpec norm_spec(std::string name, int64_t width, int64_t& group);

class DeltaMemory {
 public:
  /// OSDN's parameters, none without it.
  static std::vector<ParameterSpec> specs(const config::Model& config, const std::string& prefix,
                                          int64_t& group);

  DeltaMemory(const config::Model& config, const std::string& prefix, const WeightSource& weights);

  // N: packed tokens; D: hidden size; H, HV: key and value heads; K, V: their sizes.
  struct Input {
    at::Tensor x;          // [N, D] the layer's normalised input, read by the own gate of OSDN-APF
    at::Tensor q;          // [N, H, K]
    at::Tensor k;          // [N, H, K]
    at::Tensor v;          // [N, HV, V]
    at::Tensor beta;       // [N, HV] fp32
    at::Tensor log_decay;  // [N, HV] fp32 or [N, HV, K] fp32 or dtype of q, undefined: no decay
  };
  /// Returns what the queries read, [N, HV, V]. Takes recurrent state and d from call.state and replaces
  /// them.
  at::Tensor forward(const Input& input, MixerCall& call) const;

 private:
  bool l2_normalize_;
  std::optional<Preconditioner> preconditioner_;
};

}  // namespace osdn::model
