#include "train/signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace osdn::train {
namespace {

constexpr std::array kHandledSignals = {SIGTERM, SIGUSR1, SIGINT};
std::atomic<int> received_signal{0};
std::array<struct sigaction, kHandledSignals.size()> previous_actions;
struct sigaction previous_pipe_action;

int exit_code_of(int signal) {
  return static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated);
}

// Only async-signal-safe calls: lock-free atomics and _exit.
void on_signal(int signal) {
  if (received_signal.exchange(signal) != 0) ::_exit(exit_code_of(signal));
}

}  // namespace

SignalGuard::SignalGuard() {
  static_assert(std::atomic<int>::is_always_lock_free);
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kHandledSignals.size(); ++i)
    ::sigaction(kHandledSignals[i], &action, &previous_actions[i]);
  // A reader of the log that goes away (`osdn train ... 2>&1 | head`) must not end the training.
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, &previous_pipe_action);
}

SignalGuard::~SignalGuard() {
  for (size_t i = 0; i < kHandledSignals.size(); ++i)
    ::sigaction(kHandledSignals[i], &previous_actions[i], nullptr);
  ::sigaction(SIGPIPE, &previous_pipe_action, nullptr);
}

std::optional<ExitCode> SignalGuard::requested() const {
  const int signal = received_signal;
  if (signal == 0) return std::nullopt;
  return static_cast<ExitCode>(exit_code_of(signal));
}

}  // namespace osdn::train
