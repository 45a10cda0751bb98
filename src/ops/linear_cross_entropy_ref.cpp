#include "ops/linear_cross_entropy.h"
#include "tensor/torch.h"

namespace osdn::ops {

at::Tensor linear_cross_entropy_ref(const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& targets) {
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor log_probability = at::log_softmax(at::matmul(x, weight.t()).to(type), 1);  // [N, V]
  const at::Tensor counted = targets.ne(kIgnoreTarget);                                       // [N]
  const at::Tensor index = at::where(counted, targets, 0).unsqueeze(1);
  return -(log_probability.gather(1, index).squeeze(1) * counted).sum();
}

}  // namespace osdn::ops
