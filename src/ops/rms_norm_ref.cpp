#include "ops/rms_norm.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace rms_norm_ref_detail {

at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor normalize(const at::Tensor& z, const at::Tensor& weight, double eps) {
  return z / at::sqrt(at::mean(z * z, {-1}, /*keepdim=*/true) + eps) * weight.to(z.scalar_type());
}

}  // namespace rms_norm_ref_detail

at::Tensor rms_norm_ref(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return rms_norm_ref_detail::normalize(x.to(rms_norm_ref_detail::wide(x)), weight, eps).to(x.scalar_type());
}

at::Tensor gated_rms_norm_ref(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                              double eps, GateActivation activation) {
  const at::ScalarType type = rms_norm_ref_detail::wide(x);
  const at::Tensor n = rms_norm_ref_detail::normalize(x.to(type), weight, eps);
  const at::Tensor g = gate.to(type);
  const at::Tensor s = at::sigmoid(g);
  return (activation == GateActivation::kSwish ? n * g * s : n * s).to(x.scalar_type());
}

AddRmsNormOutput add_rms_norm_ref(const at::Tensor& branch, const at::Tensor& residual,
                                  const at::Tensor& weight, double eps) {
  const at::ScalarType type = rms_norm_ref_detail::wide(branch);
  const at::Tensor z = branch.to(type) + residual.to(type);
  return {.sum = z.to(branch.scalar_type()),
          .normalized = rms_norm_ref_detail::normalize(z, weight, eps).to(branch.scalar_type())};
}

AddRmsNormOutput carry_rms_norm_ref(const at::Tensor& branch, const at::Tensor& residual,
                                    const at::Tensor& weight, double eps) {
  const at::ScalarType type = rms_norm_ref_detail::wide(residual);
  at::Tensor sum = residual;
  if (branch.defined()) sum = (branch.to(type) + residual.to(type)).to(residual.scalar_type());
  return {.sum = sum, .normalized = rms_norm_ref(sum, weight, eps)};
}

}  // namespace osdn::ops
