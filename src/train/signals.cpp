#include "train/signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace osdn::train {
namespace {

constexpr std::array kHandledSignals = {SIGTERM, SIGUSR1, SIGHUP, SIGINT};
std::atomic<int> received_signal{0};
std::atomic<int> num_direct{0};
std::array<struct sigaction, kHandledSignals.size()> previous_actions;
struct sigaction previous_pipe_action;

int exit_code_of(int signal) {
  return static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated);
}

// Of the signal's own kind, so that a launcher sees that nothing was agreed with the other ranks; shells show
// the same 143 or 130.
void die_of(int signal) {
  const int fatal = signal == SIGINT ? SIGINT : SIGTERM;
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(fatal, &action, nullptr);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, fatal);
  ::sigprocmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(fatal);
  ::_exit(exit_code_of(signal));
}

// Only async-signal-safe calls: lock-free atomics, sigaction, raise, _exit.
void on_signal(int signal, siginfo_t* info, void* /*context*/) {
  // From the launcher comes how often it was asked itself; everybody else is counted here.
  const bool passed_on = info->si_code == SI_QUEUE && info->si_pid == ::getppid();
  const int count = passed_on ? info->si_value.sival_int : num_direct.fetch_add(1) + 1;
  int none = 0;
  received_signal.compare_exchange_strong(none, signal);
  if (count > 1) die_of(signal);
}

}  // namespace

SignalGuard::SignalGuard() {
  static_assert(std::atomic<int>::is_always_lock_free);
  received_signal = 0;
  num_direct = 0;
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  for (size_t i = 0; i < kHandledSignals.size(); ++i) {
    ::sigaction(kHandledSignals[i], &action, &previous_actions[i]);
    // Under nohup the end of the terminal's session is to be ignored.
    if (kHandledSignals[i] == SIGHUP && previous_actions[i].sa_handler == SIG_IGN)
      ::sigaction(SIGHUP, &previous_actions[i], nullptr);
  }
  // A reader of the log that goes away (`osdn train ... 2>&1 | head`) must not end the training.
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  sigemptyset(&ignored.sa_mask);
  ::sigaction(SIGPIPE, &ignored, &previous_pipe_action);
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
