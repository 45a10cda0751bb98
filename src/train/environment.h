// What a run ran on: written to environment.json at every start; differences that can change bits are named
// at resume.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/fwd.h"

namespace osdn::train {

/// Commit the program was built from, e.g. "1a2b3c4d5e6f" or "1a2b3c4d5e6f-modified"; "unknown" outside a
/// checkout.
std::string build_commit();

/// Host, processor, threads, GPUs, library versions, build, command line, start time.
Json describe_environment(at::Device device, int64_t world_size,
                          const std::vector<std::string>& command_line);

/// Fields on which bit-exactness depends and that differ, as "threads: 2 -> 4".
std::vector<std::string> bit_relevant_differences(const Json& before, const Json& now);

}  // namespace osdn::train
