// Collectives on shared memory between the GPUs of one host, over copy engines: a rank says that its part is
// ready by a flag in memory of the host, the others copy what they need out of its GPU, and sums are added
// here in the order of ranks (docs/architecture.md, section 8). Everything else is another communicator's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "dist/communicator.h"

namespace osdn::dist::detail {

struct PeerOptions {
  std::chrono::milliseconds timeout{0};
  /// fp32 numbers of all terms together that are copied here before they are added, and of one rank's: 24 and
  /// 8 MiB, which the L2 cache still holds when they are added.
  int64_t scratch = int64_t{6} << 20;
  int64_t piece = int64_t{2} << 20;
};

/// `others` moves what share() was not told of, and what share() itself has to say.
std::unique_ptr<Communicator> make_peer_communicator(std::unique_ptr<Communicator> others,
                                                     const PeerOptions& options);

}  // namespace osdn::dist::detail
