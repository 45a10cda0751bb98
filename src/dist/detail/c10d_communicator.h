// Communicators of more than one process, over c10d.
#pragma once

#include <chrono>
#include <memory>

#include "dist/communicator.h"

namespace osdn::dist::detail {

/// See make_communicator, whose contract this is for worlds of more than one.
std::unique_ptr<Communicator> make_c10d_communicator(const LaunchEnvironment& launched, at::Device device,
                                                     std::chrono::seconds timeout);

}  // namespace osdn::dist::detail
