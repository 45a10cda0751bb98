// How the processes of a job find each other: a TCPStore at the master's address, in which every rank signs
// in once. For the .cpp of this layer alone: includes LibTorch.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dist/launch_environment.h"

namespace osdn::dist::detail {

/// The store of this start of the job, all ranks signed in. EnvironmentError naming address, port and how
/// many ranks have come when they do not all within `timeout`, or when the port is taken; UserError when two
/// processes claim one rank or disagree on the number of ranks.
c10::intrusive_ptr<c10d::Store> meet(const LaunchEnvironment& launched, std::chrono::milliseconds timeout);

}  // namespace osdn::dist::detail
