// A subcommand that several processes run: starts the ranks of its node, or is one of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "dist/launch.h"

namespace osdn::apps {

struct RankedCommand {
  std::vector<std::string> words;  // the command line that every rank gets, the program's name first
  std::string directory;           // where the ranks keep their logs
  int max_restarts = 0;
};

/// `body` on every rank: of the job of a launcher that started this process, of one of `request`'s size that
/// this process starts itself, or alone. Its exit code; UserError for more processes than GPUs.
ExitCode run_ranks(const config::Config& config, dist::LaunchRequest request, const RankedCommand& command,
                   const std::function<ExitCode(const dist::LaunchEnvironment&)>& body);

}  // namespace osdn::apps
