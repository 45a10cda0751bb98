#include "base/crash.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/fs.h"
#include "base/log.h"
#include "tests/support/catch.h"

namespace crash_report_test {

struct Death {
  int signal = 0;  // 0: it did not die of one
  std::string log;
  std::string terminal;
};

/// How a child dies that reports crashes, logs a line and then does `fatal`.
template <typename Fatal>
Death die_of(Fatal fatal) {
  const osdn::TemporaryDirectory directory;
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open((directory.path() + "/err").c_str(), O_CREAT | O_WRONLY, 0644), 2);
    // A handler of the test program or of a sanitizer would stay in charge.
    for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::signal(number, SIG_DFL);
    osdn::log::add_file(directory.path() + "/log.txt");
    osdn::report_crashes();
    osdn::log::info("step 7");
    fatal();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
          .log = osdn::read_file(directory.path() + "/log.txt"),
          .terminal = osdn::read_file(directory.path() + "/err")};
}

void check_told(const Death& death, int signal, const std::string& told) {
  INFO(death.log);
  CHECK(death.signal == signal);
  for (const std::string* text : {&death.log, &death.terminal}) {
    CHECK(text->find("info") < text->find(told));
    CHECK(text->find(told) != std::string::npos);
    CHECK(text->find("calls:\n") != std::string::npos);
  }
}

}  // namespace crash_report_test

TEST_CASE("a fatal signal is told in the log file and ends the process as it would have", "[crash]") {
  using crash_report_test::check_told;
  using crash_report_test::die_of;
  check_told(die_of([] { ::raise(SIGSEGV); }), SIGSEGV, "died of SIGSEGV");
  check_told(die_of([] { ::kill(::getpid(), SIGBUS); }), SIGBUS, "died of SIGBUS");
  check_told(die_of([] { std::thread([] { ::raise(SIGFPE); }).join(); }), SIGFPE, "died of SIGFPE");
}

TEST_CASE("an exception that nothing catches is told in the log file, thrown on any thread", "[crash]") {
  using crash_report_test::check_told;
  using crash_report_test::die_of;
  check_told(die_of([] { std::thread([] { throw std::runtime_error("at step 8"); }).join(); }), SIGABRT,
             "error an exception that nothing caught: at step 8");
  check_told(die_of([] { std::thread([] { throw 8; }).join(); }), SIGABRT, "of an unknown type");
}

TEST_CASE("a signal that has a handler keeps it", "[crash]") {
  const auto death = crash_report_test::die_of([] {
    ::signal(SIGSEGV, SIG_IGN);
    osdn::report_crashes();
    ::raise(SIGSEGV);
  });
  CHECK(death.signal == 0);
}
