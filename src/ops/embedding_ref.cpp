#include "ops/embedding.h"
#include "tensor/torch.h"

namespace osdn::ops {

at::Tensor embedding_ref(const at::Tensor& ids, const at::Tensor& weight) {
  return weight.index_select(0, ids);
}

}  // namespace osdn::ops
