#include "ops/linear.h"
#include "tensor/torch.h"

namespace osdn::ops {

at::Tensor linear_ref(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor y = at::matmul(x, weight.t());  // [N, D_out]
  return bias.defined() ? y + bias : y;
}

}  // namespace osdn::ops
