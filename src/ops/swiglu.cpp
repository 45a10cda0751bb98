#include "ops/swiglu.h"

#include "base/error.h"
#include "ops/detail/dispatch.h"
#include "ops/detail/swiglu_paths.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace swiglu_detail {

at::Tensor forward_aten(const at::Tensor& gate_up) {
  const at::ScalarType type = accumulation_type(gate_up.scalar_type());
  const auto halves = gate_up.chunk(2, 1);  // gate, up: [N, I]
  return (at::silu(halves[0].to(type)) * halves[1].to(type)).to(gate_up.scalar_type());
}

at::Tensor backward_aten(const at::Tensor& gate_up, const at::Tensor& dz) {
  const at::ScalarType type = accumulation_type(gate_up.scalar_type());
  const auto halves = gate_up.chunk(2, 1);
  const at::Tensor gate = halves[0].to(type);  // [N, I]
  const at::Tensor up = halves[1].to(type);    // [N, I]
  const at::Tensor dy = dz.to(type);           // [N, I]
  const at::Tensor s = at::sigmoid(gate);
  const at::Tensor dgate = dy * up * s * (1 + gate * (1 - s));  // (eq. 2)
  const at::Tensor dup = dy * gate * s;                         // (eq. 3)
  return at::cat({dgate, dup}, 1).to(gate_up.scalar_type());
}

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& gate_up) {
    ctx->save_for_backward({gate_up});
    const at::Tensor rows = gate_up.contiguous();
    if (on_kernel_path(rows)) return forward_kernel(rows);
    return uses_loops(rows) ? forward_cpu(rows) : forward_aten(rows);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor rows = ctx->get_saved_variables()[0].contiguous();  // [N, 2 * I]
    const at::Tensor dz = gradients[0].contiguous();                     // [N, I]
    if (on_kernel_path(rows)) return {backward_kernel(rows, dz)};
    return {uses_loops(rows) ? backward_cpu(rows, dz) : backward_aten(rows, dz)};
  }
};

}  // namespace swiglu_detail

at::Tensor swiglu(const at::Tensor& gate_up) {
  check_shape("swiglu", "gate_up", gate_up, {-1, -1});
  check_dtype("swiglu", "gate_up", gate_up, {at::kFloat, at::kBFloat16, at::kDouble});
  if (gate_up.size(1) % 2 != 0)
    throw UserError("swiglu: gate_up: expected an even number of columns (gate, then up), got {}",
                    gate_up.size(1));
  return swiglu_detail::SwigluFunction::apply(gate_up);
}

}  // namespace osdn::ops
