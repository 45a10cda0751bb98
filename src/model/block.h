// One pre-norm block: mixer, fused residual norm, SwiGLU (the peer's fused form: the second norm reads the
// unrounded fp32 sum).
#pragma once

#include "model/mixer.h"
#include "tensor/weight.h"

namespace osdn::model {

class Block {
 public:
  static std::vector<ParameterSpec> specs(const config::Model& config, int64_t layer, int64_t& group);

  Block(const config::Model& config, int64_t layer, const WeightSource& weights);

  /// r [N, D] residual stream; returns the next one. `recompute`: what backward computes again instead of
  /// keeping.
  at::Tensor forward(const at::Tensor& r, MixerCall& call, config::Recompute recompute) const;

 private:
  at::Tensor mix(const at::Tensor& r, MixerCall& call) const;             // norm and mixer
  at::Tensor finish(const at::Tensor& mixed, const at::Tensor& r) const;  // residual, norm, MLP

  double norm_eps_;
  Weight attn_norm_;  // [D]
  std::unique_ptr<Mixer> mixer_;
  Weight mlp_norm_;  // [D]
  Weight gate_up_;   // [2I, D]
  Weight down_;      // [D, I]
};

}  // namespace osdn::model
