#include <array>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "dist/detail/backend.h"
#include "tensor/torch.h"

// After LibTorch: the header is empty without the definition that CMake gives this file.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace osdn::dist::detail {
namespace backend_nccl_detail {

// A sum's bits depend on the order of its terms: NCCL's algorithm, its protocol and into how many channels it
// cuts a range. Left to itself it chooses by message size and topology, and may choose otherwise tomorrow.
// NVLink multicast sums in the switch, in an order of its own. Failures are the communicator's to report, not
// a reason for c10d to abort the process or to write a dump before connections may be closed.
constexpr std::array<std::pair<const char*, const char*>, 8> kSettings = {
    {{"NCCL_ALGO", "Ring"},
     {"NCCL_PROTO", "Simple"},
     {"NCCL_MIN_NCHANNELS", "32"},
     {"NCCL_MAX_NCHANNELS", "32"},
     {"NCCL_NVLS_ENABLE", "0"},
     {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},
     {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
     {"TORCH_NCCL_ENABLE_MONITORING", "0"}}};

/// The library that is loaded need not be the one whose headers were compiled against.
void check_versions(const LaunchEnvironment& launched) {
  const auto [major, minor, patch] = c10d::getNcclVersionTuple();
  if (major != NCCL_MAJOR || minor < NCCL_MINOR)
    throw EnvironmentError(
        "rank {} of {}: compiled against NCCL {}.{}.{}, loaded {}.{}.{}; put a library that is as new first "
        "in "
        "LD_LIBRARY_PATH, or build again",
        launched.rank, launched.world_size, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, major, minor, patch);
  if (launched.rank == 0)
    log::info("NCCL {}.{}.{} (compiled against {}.{}.{})", major, minor, patch, NCCL_MAJOR, NCCL_MINOR,
              NCCL_PATCH);
}

}  // namespace backend_nccl_detail

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendRequest& request) {
  backend_nccl_detail::check_versions(request.launched);
  for (const auto& [name, value] : backend_nccl_detail::kSettings) ::setenv(name, value, 0);
  // Collectives run beside the model's kernels and are what others wait for: they go first.
  const auto options = c10d::ProcessGroupNCCL::Options::create(true);
  // The communicator's watchdog ends what hangs. c10d's own would find it at the same moment, and then waits
  // for a dump with locks in its hand that aborting needs.
  options->timeout = request.timeout + std::chrono::hours(24 * 365);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.launched.rank,
                                                     request.launched.world_size, options);
}

}  // namespace osdn::dist::detail
