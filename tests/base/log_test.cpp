#include "base/log.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "tests/support/catch.h"

namespace log_test {

/// Runs `body` in a child whose stdout and stderr go to files; how it ended is returned as waitpid tells it.
template <typename Body>
int in_child(const std::string& directory, Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open((directory + "/out").c_str(), O_CREAT | O_WRONLY, 0644), 1);
    ::dup2(::open((directory + "/err").c_str(), O_CREAT | O_WRONLY, 0644), 2);
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace log_test

TEST_CASE("every line written before a sudden death is in the file and on stderr", "[log]") {
  const osdn::TemporaryDirectory directory;
  const int signal = GENERATE(SIGKILL, SIGSEGV, SIGABRT);
  const int status = log_test::in_child(directory.path(), [&] {
    // Other handlers, such as a sanitizer's, would turn the signal into an exit.
    ::signal(SIGSEGV, SIG_DFL);
    ::signal(SIGABRT, SIG_DFL);
    osdn::log::add_file(directory.path() + "/log.txt");
    for (int step = 1; step <= 9; ++step) osdn::log::info("step {}", step);
    osdn::log::error("the reason");
    ::raise(signal);
  });
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == signal);
  for (const char* name : {"/log.txt", "/err"}) {
    const std::string text = osdn::read_file(directory.path() + name);
    CHECK(log_test::contains(text, "info step 9\n"));
    CHECK(log_test::contains(text, "error the reason\n"));
  }
  CHECK(osdn::read_file(directory.path() + "/out").empty());
}

TEST_CASE("redirected, lines and whatever else goes to stderr are in the file, once, and no longer on stderr",
          "[log]") {
  const osdn::TemporaryDirectory directory;
  log_test::in_child(directory.path(), [&] {
    osdn::log::info("before");
    osdn::log::redirect_to_file(directory.path() + "/log_rank_1.txt");
    osdn::log::error("the reason");
    (void)!::write(STDERR_FILENO, "a library's words\n", 18);
  });
  const std::string terminal = osdn::read_file(directory.path() + "/err");
  CHECK(log_test::contains(terminal, "before\n"));
  CHECK_FALSE(log_test::contains(terminal, "the reason"));
  const std::string file = osdn::read_file(directory.path() + "/log_rank_1.txt");
  CHECK(log_test::contains(file, "error the reason\na library's words\n"));
  CHECK(file.find("the reason") == file.rfind("the reason"));
}

TEST_CASE("levels below the threshold are dropped", "[log]") {
  const osdn::TemporaryDirectory directory;
  log_test::in_child(directory.path(), [] {
    osdn::log::debug("quiet");
    osdn::log::set_level(osdn::log::Level::kWarning);
    osdn::log::info("also quiet");
    osdn::log::warning("{} {}", "braces", "{}");
  });
  const std::string text = osdn::read_file(directory.path() + "/err");
  CHECK_FALSE(log_test::contains(text, "quiet"));
  CHECK(log_test::contains(text, "braces {}"));
}

TEST_CASE("lines of several threads stay whole while a file is added", "[log]") {
  const osdn::TemporaryDirectory directory;
  log_test::in_child(directory.path(), [&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < 200; ++i) osdn::log::info("<{}>", std::string(50, 'x'));
      });
    osdn::log::add_file(directory.path() + "/log.txt");
    for (std::thread& thread : threads) thread.join();
  });
  const std::string text = osdn::read_file(directory.path() + "/err");
  size_t num_lines = 0;
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
    const std::string line = text.substr(begin, text.find('\n', begin) - begin);
    CHECK(line.substr(line.find('<')) == "<" + std::string(50, 'x') + ">");
    ++num_lines;
  }
  CHECK(num_lines == 800);
}

TEST_CASE("a log file that can't be opened is named", "[log]") {
  std::string message;
  try {
    osdn::log::add_file("/dev/null/log.txt");
  } catch (const osdn::EnvironmentError& failure) {
    message = failure.what();
  }
  CHECK(log_test::contains(message, "/dev/null/log.txt"));
}

TEST_CASE("a log file that can no longer be written is told once and the lines go on", "[log]") {
  const osdn::TemporaryDirectory directory;
  const int status = log_test::in_child(directory.path(), [&] {
    osdn::log::add_file("/dev/full");
    for (int i = 0; i < 3; ++i) osdn::log::info("line {}", i);
  });
  CHECK(status == 0);
  const std::string text = osdn::read_file(directory.path() + "/err");
  CHECK(log_test::contains(text, "/dev/full: writing"));
  CHECK(log_test::contains(text, "No space left on device; lines go on to stderr"));
  CHECK(text.find("No space left") == text.rfind("No space left"));
  for (const char* line : {"line 0", "line 1", "line 2"}) CHECK(log_test::contains(text, line));
}

TEST_CASE("lines for the files alone do not reach the terminal", "[log]") {
  const osdn::TemporaryDirectory directory;
  log_test::in_child(directory.path(), [&] {
    osdn::log::add_file(directory.path() + "/log.txt");
    osdn::log::write_to_files(osdn::log::Level::kInfo, "step 7");
    osdn::log::info("both");
  });
  const std::string file = osdn::read_file(directory.path() + "/log.txt");
  const std::string terminal = osdn::read_file(directory.path() + "/err");
  CHECK(log_test::contains(file, "info step 7\n"));
  CHECK(log_test::contains(file, "info both\n"));
  CHECK_FALSE(log_test::contains(terminal, "step 7"));
  CHECK(log_test::contains(terminal, "both"));
}
