// Collectives on shared memory between the GPUs of one host, over copy engines: a rank says that its part is
// ready by a flag in memory of the host, the others copy what they need out of its GPU, and sums are added
// here in the order of ranks (docs/architecture.md, section 8). Everything else is another communicator's.
#pragma once

#include <chrono>
#include <memory>

#include "dist/communicator.h"

namespace osdn::dist::detail {

/// `others` moves what share() was not told of, and what share() itself has to say.
std::unique_ptr<Communicator> make_peer_communicator(std::unique_ptr<Communicator> others,
                                                     std::chrono::milliseconds timeout);

}  // namespace osdn::dist::detail
