// One pre-norm block: mixer, fused residual norm, SwiGLU (the peer's fused form: the second norm reads the
// unrounded fp32 sum).
#pragma once

#include "model/mixer.h"
#include "tensor/weight.h"

namespace osdn::model {

/// The residual stream between two blocks, [N, D] each: the stream is their sum, which the next norm forms.
struct Stream {
  at::Tensor branch;  // what the last block adds; undefined: nothing
  at::Tensor residual;
};

class Block {
 public:
  static std::vector<ParameterSpec> specs(const config::Model& config, int64_t layer, int64_t& group);

  Block(const config::Model& config, int64_t layer, const WeightSource& weights);

  /// Returns the next stream. `recompute`: what backward computes again instead of keeping.
  Stream forward(const Stream& stream, MixerCall& call, config::Recompute recompute) const;

 private:
  Stream whole(const Stream& stream, MixerCall& call) const;
  Stream finish(const at::Tensor& mixed, const at::Tensor& r) const;  // residual, norm, MLP

  double norm_eps_;
  Weight attn_norm_;  // [D]
  std::unique_ptr<Mixer> mixer_;
  Weight mlp_norm_;  // [D]
  Weight gate_up_;   // [2I, D]
  Weight down_;      // [D, I]
};

}  // namespace osdn::model
