// SIGTERM, SIGUSR1, SIGHUP (unless it is ignored, as under nohup) and SIGINT ask the run to finish its step,
// write a checkpoint and exit; a second signal ends the process at once, which loses nothing that was
// complete. SIGPIPE is ignored.
#pragma once

#include <optional>

#include "base/error.h"

namespace osdn::train {

/// Installs the handlers for its lifetime; one instance at a time. A signal that this process' launcher
/// passes on (dist/supervisor.h) and the same one sent to every process of a job count as one, not as two.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  /// The exit code asked for (kTerminated or kInterrupted), or nothing.
  std::optional<ExitCode> requested() const;
};

}  // namespace osdn::train
