#include "base/crash.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/log.h"

namespace osdn {
namespace {

struct FatalSignal {
  int number;
  const char* text;
};
constexpr std::array kFatalSignals = {
    FatalSignal{SIGSEGV, "error died of SIGSEGV (invalid memory access), a fault of the program; calls:\n"},
    FatalSignal{SIGBUS, "error died of SIGBUS (a mapped file became shorter or its medium failed); calls:\n"},
    FatalSignal{SIGILL, "error died of SIGILL (an instruction this processor does not have); calls:\n"},
    FatalSignal{SIGFPE, "error died of SIGFPE (integer division by zero), a fault of the program; calls:\n"},
    FatalSignal{SIGABRT, "error died of SIGABRT (the program ended itself); calls:\n"}};

constexpr int kMaxFrames = 64;
// A stack of its own: the signal may mean that the other one is full.
std::array<char, 65536> handler_stack;

// Only async-signal-safe calls; backtrace() is after its first use.
void on_fatal_signal(int number) {
  void* frames[kMaxFrames];
  const int num_frames = ::backtrace(frames, kMaxFrames);
  for (const int descriptor : {STDERR_FILENO, log::file_descriptor()}) {
    if (descriptor < 0) continue;
    for (const FatalSignal& signal : kFatalSignals)
      if (signal.number == number) (void)!::write(descriptor, signal.text, std::strlen(signal.text));
    ::backtrace_symbols_fd(frames, num_frames, descriptor);
  }
  // The handler is gone by now (SA_RESETHAND): the same signal again ends the process.
  ::raise(number);
}

[[noreturn]] void on_terminate() {
  try {
    if (const std::exception_ptr current = std::current_exception()) std::rethrow_exception(current);
    log::error("terminated without an exception");
  } catch (const std::exception& failure) {
    log::error("an exception that nothing caught: {}", failure.what());
  } catch (...) {
    log::error("an exception that nothing caught, of an unknown type");
  }
  std::abort();
}

}  // namespace

void report_crashes() {
  // The first call loads a library, which a handler must not do.
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  const stack_t stack = {.ss_sp = handler_stack.data(), .ss_flags = 0, .ss_size = handler_stack.size()};
  ::sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = on_fatal_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_ONSTACK | SA_RESETHAND | SA_NODEFER;
  for (const FatalSignal& signal : kFatalSignals) {
    struct sigaction present {};
    if (::sigaction(signal.number, nullptr, &present) == 0 && present.sa_handler == SIG_DFL)
      ::sigaction(signal.number, &action, nullptr);
  }
  std::set_terminate(on_terminate);
}

}  // namespace osdn
