// Runs the processes of one node: starts them, passes signals on, ends all when one fails and starts them
// again. Plain C++ and one thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "dist/peers.h"

namespace osdn::dist {

struct Worker {
  int rank = 0;
  std::vector<std::string> arguments;    // the program's path first
  std::vector<std::string> environment;  // NAME=value; all of it
  bool on_terminal = false;  // it writes where this process does; else its output is kept for messages
  std::string log_file;      // that it writes itself; its end is quoted when the worker fails
};

struct SupervisorOptions {
  int max_restarts = 0;
  /// For the others to end in order after one has.
  std::chrono::milliseconds follow = std::chrono::minutes(10);
  /// Between SIGTERM and SIGKILL.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  std::string where;     // added to a process' number in messages, such as " on node-3"; empty for one node
  std::string log_file;  // gets what is said of failures, if its directory is there; empty: none
};

/// For one attempt.
using MakeWorkers = std::function<std::vector<Worker>(const Meeting&)>;

/// Blocks the signals that ask a job to stop and SIGCHLD, for its lifetime, in this thread and those it
/// starts. Comes before anything that starts a thread.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  /// A signalfd of them.
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

/// Until all workers end in order (their exit code: 0, 130 or 143) or a failure that no restart cures, or one
/// too many: its exit code. SIGTERM, SIGINT, SIGUSR1 and SIGHUP go to every worker, by sigqueue with how
/// often one came as the value, so that a worker that also got one directly can tell it from a second.
/// Workers die with this process.
ExitCode supervise(Peers& peers, const BlockedSignals& signals, const SupervisorOptions& options,
                   const MakeWorkers& make_workers);

}  // namespace osdn::dist
