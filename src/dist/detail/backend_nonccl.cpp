#include "base/error.h"
#include "dist/detail/backend.h"
#include "tensor/torch.h"

namespace osdn::dist::detail {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendRequest& request) {
  throw EnvironmentError(
      "rank {} of {}: this build has no NCCL, which several processes on GPUs need; install NCCL's headers "
      "and build again, or train in one process",
      request.launched.rank, request.launched.world_size);
}

}  // namespace osdn::dist::detail
