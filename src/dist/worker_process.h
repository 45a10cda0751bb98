// One process that a launcher started.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/fs.h"
#include "dist/supervisor.h"

namespace osdn::dist {

class WorkerProcess {
 public:
  /// Starts it, in a process group of its own (Ctrl-C reaches the launcher alone, which passes it on), with
  /// the signals that this thread blocks unblocked. It is killed when the launcher dies.
  explicit WorkerProcess(const Worker& worker);
  /// Kills and reaps what still runs.
  ~WorkerProcess();
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;

  int rank() const { return rank_; }
  bool running() const { return pid_ > 0; }
  /// Its wait status, once, when it has ended since the last call.
  std::optional<int> poll();
  void signal(int number, int count) const;
  void kill() const;
  /// "rank 1 (process 4711 on node-3)"
  std::string name(const std::string& where) const;
  /// The last line of its log that tells of an error, else the last it wrote at all; empty if none.
  std::string last_line() const;
  /// Neither running nor waiting: stopped by SIGSTOP or a debugger.
  bool stopped() const;

 private:
  int rank_ = 0;
  pid_t pid_ = -1;  // while it runs
  pid_t started_pid_ = -1;
  int output_ = -1;  // memory file with what it wrote; -1 on the terminal
  std::string log_file_;
  uint64_t log_begin_ = 0;  // size of the log file when it was started
};

/// The ExitCode of a wait status that means "asked to stop": exit codes 130 and 143, and death by the signals
/// that ask for it, which reach a process before it can handle them.
std::optional<ExitCode> stop_code(int wait_status);
/// What a failed worker's wait status means; `name` and `last_line` for the reason.
Failure describe_failure(int wait_status, const std::string& name, const std::string& last_line);

}  // namespace osdn::dist
