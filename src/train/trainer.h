// The training loop. Front door of the layer: docs/architecture.md opens it call by call.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "dist/communicator.h"
#include "dist/launch_environment.h"
#include "tensor/fwd.h"

namespace osdn::train {

/// How a rank meets the others.
using Connect = std::function<std::unique_ptr<dist::Communicator>(
    const dist::LaunchEnvironment& launched, at::Device device, std::chrono::seconds timeout)>;

/// Trains (or goes on training) the run that `config` describes until its last step or a signal. Returns
/// kDone, kInterrupted or kTerminated; throws for everything else. As the rank that `launched` says, of a job
/// that trains the run together. `command_line` is recorded in environment.json.
ExitCode train(const config::Config& config, const dist::LaunchEnvironment& launched,
               const std::vector<std::string>& command_line,
               const Connect& connect = dist::make_communicator);

}  // namespace osdn::train
