// The training loop. Front door of the layer: docs/architecture.md opens it call by call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "dist/launch_environment.h"

namespace osdn::train {

/// Trains (or goes on training) the run that `config` describes until its last step or a signal. Returns
/// kDone, kInterrupted or kTerminated; throws for everything else. As the rank that `launched` says, of a job
/// that trains the run together. `command_line` is recorded in environment.json.
ExitCode train(const config::Config& config, const dist::LaunchEnvironment& launched,
               const std::vector<std::string>& command_line);

}  // namespace osdn::train
