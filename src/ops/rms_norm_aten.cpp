#include "ops/detail/rms_norm_paths.h"
#include "ops/linear.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops::rms_norm_detail {
namespace {

at::Tensor normalized_sum(const Inputs& in, at::ScalarType type) {
  const at::Tensor x = in.x.to(type);
  if (!in.residual.defined()) return x;
  const at::Tensor sum = x + in.residual.to(type);
  return in.round_sum ? sum.to(in.x.scalar_type()).to(type) : sum;
}

}  // namespace

Outputs forward_aten(const Inputs& in) {
  const at::ScalarType storage = in.x.scalar_type();
  const at::ScalarType type = accumulation_type(storage);
  const at::Tensor z = normalized_sum(in, type);  // [R, D]
  const auto width = static_cast<double>(z.size(-1));
  const at::Tensor rstd = (sum_last(z.square()) / width + in.eps).rsqrt();  // [R, 1] (eq. 1)
  at::Tensor y = z * rstd * in.weight;                                      // [R, D] (eq. 2)
  if (in.gate.defined()) {
    const at::Tensor g = in.gate.to(type);
    y = y * (in.activation == GateActivation::kSwish ? at::silu(g) : at::sigmoid(g));
  }
  return {y.to(storage), in.residual.defined() ? z.to(storage) : at::Tensor(), rstd.squeeze(-1)};
}

Gradients backward_aten(const Inputs& in, const at::Tensor& rstd_of_rows, const at::Tensor& dy,
                        const at::Tensor& dsum) {
  const at::ScalarType storage = in.x.scalar_type();
  const at::ScalarType type = accumulation_type(storage);
  const at::Tensor rstd = rstd_of_rows.unsqueeze(-1);             // [R, 1]
  const at::Tensor normalized = normalized_sum(in, type) * rstd;  // [R, D]
  at::Tensor dn = dy.to(type);                                    // [R, D]
  Gradients out;
  if (in.gate.defined()) {
    const at::Tensor g = in.gate.to(type);
    const at::Tensor s = at::sigmoid(g);
    const bool swish = in.activation == GateActivation::kSwish;
    const at::Tensor slope = swish ? s * (1 + g * (1 - s)) : s * (1 - s);
    out.dgate = (dn * normalized * in.weight * slope).to(storage);  // (eq. 6)
    dn = dn * (swish ? g * s : s);                                  // (eq. 5)
  }
  out.dweight = sum_rows(dn * normalized);  // (eq. 4)
  const at::Tensor weighted = dn * in.weight;
  at::Tensor dx =
      rstd * (weighted - normalized * (weighted * normalized).mean(-1, /*keepdim=*/true));  // (eq. 3)
  if (dsum.defined()) dx = dx + dsum.to(type);
  out.dx = dx.to(storage);
  return out;
}

}  // namespace osdn::ops::rms_norm_detail
