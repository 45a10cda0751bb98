// Jobs of several processes: started, watched by what they write, their ranks found by their environment.
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/run_fixture.h"

namespace osdn::test {

using EnvironmentPairs = std::vector<std::pair<std::string, std::string>>;

/// `osdn train` with two processes on this node, or what `more` says, in the background. Overrides as of
/// --set.
inline std::unique_ptr<Process> start_two(const RunFolder& folder,
                                          const std::vector<std::string>& overrides = {},
                                          const std::vector<std::string>& more = {"--processes", "2"},
                                          EnvironmentPairs environment = {}) {
  std::vector<std::string> arguments = folder.train_arguments(overrides);
  arguments.insert(arguments.begin(), OSDN_BINARY);
  arguments.insert(arguments.end(), more.begin(), more.end());
  environment.emplace_back("OMP_NUM_THREADS", "1");
  return std::make_unique<Process>(arguments, folder.path(), environment);
}

/// Until `reached`, while the process runs; false when that does not come.
inline bool wait_until(Process& process, const std::function<bool()>& reached,
                       std::chrono::seconds limit = std::chrono::seconds(120)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!reached()) {
    if (!process.running() || std::chrono::steady_clock::now() > deadline) return reached();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

inline int64_t lines_of(const std::string& path) {
  if (!std::filesystem::exists(path)) return 0;
  const std::string text = read_file(path);
  return static_cast<int64_t>(std::count(text.begin(), text.end(), '\n'));
}

/// Steps that are recorded.
inline bool wait_for_step(Process& process, const std::string& run, int64_t step) {
  return wait_until(process, [&] { return lines_of(run + "/metrics.jsonl") >= step; });
}

/// The live process with RANK=`rank` whose environment has `mark`; 0 if there is none.
inline pid_t process_of_rank(int rank, const std::string& mark) {
  const std::string wanted = fmt::format("RANK={}", rank);
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "environ");
    bool has_rank = false;
    bool has_mark = false;
    for (std::string one; std::getline(file, one, '\0');) {
      has_rank |= one == wanted;
      has_mark |= one == mark;
    }
    if (has_rank && has_mark) return static_cast<pid_t>(std::stol(name));
  }
  return 0;
}

/// Of a job that was started by `launcher` on its own: its child with that rank; 0 when there is none in 5 ms
/// times `attempts`.
inline pid_t worker_of(pid_t launcher, int rank, int attempts = 2000) {
  for (int attempt = 0; attempt < attempts; ++attempt) {
    std::ifstream children(fmt::format("/proc/{}/task/{}/children", launcher, launcher));
    for (pid_t child = 0; children >> child;) {
      std::ifstream file(fmt::format("/proc/{}/environ", child));
      for (std::string one; std::getline(file, one, '\0');)
        if (one == fmt::format("RANK={}", rank)) return child;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return 0;
}

/// Checkpoints that are complete, by step.
inline std::vector<std::string> checkpoints_of(const std::string& run) {
  std::vector<std::string> names;
  if (std::filesystem::exists(run + "/checkpoints"))
    for (const auto& entry : std::filesystem::directory_iterator(run + "/checkpoints"))
      if (std::filesystem::exists(entry.path() / "manifest.json"))
        names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string step_name(int64_t step) { return fmt::format("step_{:08d}", step); }

inline int64_t count_of(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace osdn::test
