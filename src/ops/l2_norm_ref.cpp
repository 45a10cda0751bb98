#include "ops/l2_norm.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {

at::Tensor l2_norm_ref(const at::Tensor& x) {
  const at::Tensor wide = x.to(accumulation_type(x.scalar_type()));  // [..., D]
  return (wide * at::rsqrt(wide.square().sum(-1, true) + kL2NormEps)).to(x.scalar_type());
}

}  // namespace osdn::ops
