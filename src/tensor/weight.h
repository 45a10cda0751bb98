// How parameters reach the ops. Weight gradients do not travel through autograd: every op with parameters
// adds them straight into the fp32 gradient arena (the sink), so that gradients accumulate over micro-batches
// in fp32 and lie where the optimiser and the collectives want them. Tests leave the sink undefined and get
// the gradient from autograd.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensor/fwd.h"

namespace osdn {

/// One parameter as an op sees it.
struct Weight {
  at::Tensor
      value;  // compute dtype (float32, bf16; float64 in tests); requires_grad only when there is no sink
  at::Tensor sink;  // fp32 (float64 where value is float64), same shape; backward ADDS into it. Undefined:
                    // autograd returns the gradient for `value` instead
  bool defined() const { return value.defined(); }
};

/// How a parameter starts (docs: backbone pages). Random values are counter-based on (seed, name, element).
enum class Initializer {
  kNormal,           // N(0, scale)
  kConstant,         // scale everywhere
  kLogUniform,       // ln of U(low, scale)
  kInverseSoftplus,  // softplus of it is log-uniform in [low, scale], at least 1e-4
};

/// One parameter as the model declares it, before anything is allocated.
struct ParameterSpec {
  std::string name;            // the peer's checkpoint name, e.g. model.layers.0.attn.q_proj.weight
  std::vector<int64_t> shape;  // logical shape; vocabulary padding is never part of it
  Initializer initializer = Initializer::kNormal;
  double scale = 0.02;  // standard deviation, constant, or upper end
  double low = 0;       // lower end
  bool decay = true;    // weight decay applies (product rule: projections, convolutions, embedding, head)
  bool full_precision = false;  // computed with in fp32 always (norms, d0, gate biases): no bf16 copy
  bool trainable = true;        // false: counted and saved, never updated (a d0 that is not learned)
  int64_t group =
      0;  // parameters of one group lie adjacent: one GEMM or convolution computes with all of them
  int64_t num_elements() const {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
  }
};

/// Several weights of one group as one: rows of the first dimension follow each other. Throws InternalError
/// unless values and sinks are adjacent in memory, as the parameter arena lays out a group.
Weight join(const std::vector<Weight>& weights);

/// Finds a parameter by name; throws InternalError for an unknown one.
using WeightSource = std::function<Weight(const std::string& name)>;

}  // namespace osdn
