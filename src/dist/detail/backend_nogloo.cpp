#include "base/error.h"
#include "dist/detail/backend.h"
#include "tensor/torch.h"

namespace osdn::dist::detail {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendRequest& request) {
  throw EnvironmentError(
      "rank {} of {}: this build has no Gloo, which several processes on CPUs need; install libgloo-dev and "
      "build again, or train in one process",
      request.launched.rank, request.launched.world_size);
}

}  // namespace osdn::dist::detail
