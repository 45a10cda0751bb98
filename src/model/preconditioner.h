// The OSDN part of a mixer: from keys, beta and the layer input to the write key (docs/ops/precond_scan.md),
// with the retention gate of OSDN-APF. Shared by all backbones; shaped by value heads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "ops/precond_scan.h"
#include "tensor/weight.h"

namespace osdn::model {

class Preconditioner {
 public:
  /// `prefix` ends in "attn."; parameters: initial_scale [HV, K]; with the own gate osgm_a_proj.weight [HV,
  /// D] and .bias.
  static std::vector<ParameterSpec> specs(const config::Osdn& osdn, const std::string& prefix,
                                          int64_t hidden_size, int64_t num_value_heads, int64_t head_dim,
                                          int64_t& group);

  Preconditioner(const config::Osdn& osdn, const std::string& prefix, const WeightSource& weights);

  struct Input {
    at::Tensor x;          // [N, D] the layer's normalised input, read by the own gate
    at::Tensor k;          // [N, H, K] unnormalised
    at::Tensor beta;       // [N, HV] fp32
    at::Tensor log_decay;  // of the memory (delta_memory.h), read by the state gate
    at::Tensor carried;    // [S, HV, K] fp32 or undefined
    ops::SequencesPtr sequences;
    bool collect_statistics = false;
  };
  ops::PrecondScanOutput forward(const Input& input) const;

 private:
  at::Tensor retention(const Input& input) const;  // [N, HV], [N, HV, K] or undefined

  config::Osdn osdn_;
  ops::PrecondScanOptions options_;
  Weight initial_scale_;  // [HV, K]
  Weight gate_weight_;    // [HV, D], own gate only
  Weight gate_bias_;      // [HV], own gate only
};

}  // namespace osdn::model
