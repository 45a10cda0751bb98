#include "ops/decay_gate.h"
#include "tensor/torch.h"

namespace osdn::ops {

at::Tensor decay_gate_ref(const at::Tensor& a, const at::Tensor& log_rate, const at::Tensor& bias,
                          std::optional<double> lower_bound) {
  const at::ScalarType type = a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const bool per_channel = a.dim() == 3;
  const at::Tensor rate = log_rate.to(type).exp();  // [HV]
  const at::Tensor r = per_channel ? rate.unsqueeze(1) : rate;
  const at::Tensor b = per_channel ? bias.to(type).view({a.size(1), a.size(2)}) : bias.to(type);
  const at::Tensor y = a.to(type) + b;  // shape of a
  if (lower_bound) return *lower_bound / (1 + (-r * y).exp());
  return -r * at::where(y > 20, y, (y.clamp_max(20).exp() + 1).log());
}

}  // namespace osdn::ops
