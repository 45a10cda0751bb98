#include "ops/swiglu.h"
#include "tensor/torch.h"

namespace osdn::ops {

at::Tensor swiglu_ref(const at::Tensor& gate_up) {
  const at::ScalarType type = gate_up.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto halves = gate_up.to(type).chunk(2, 1);  // gate, up: [N, I]
  return (halves[0] * at::sigmoid(halves[0]) * halves[1]).to(gate_up.scalar_type());
}

}  // namespace osdn::ops
