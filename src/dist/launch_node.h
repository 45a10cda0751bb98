// `osdn train` as the launcher of its node: one process a GPU, each the same program with the same arguments
// and its rank in the environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "dist/launch.h"

namespace osdn::dist {

struct LaunchedJob {
  std::vector<std::string> arguments;  // of the program, its name first
  std::string run_directory;           // where the ranks keep their logs
  int64_t timeout_seconds = 600;
  int max_restarts = 0;
};

/// Until the job ends: its exit code. docs/howto/run_on_a_cluster.md says what happens when a rank fails.
ExitCode launch_node(const Node& node, const LaunchedJob& job);

/// GPUs that this process may use, asked in a process of its own, so that this one never touches the driver.
int count_gpus();

}  // namespace osdn::dist
