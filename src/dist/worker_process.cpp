#include "dist/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace osdn::dist {
namespace worker_process_detail {

constexpr size_t kTailBytes = 16384;  // of a log or output that are read for its last line
constexpr size_t kQuotedBytes = 600;  // of that line

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// In the new process, where other threads' locks may be held for ever: system calls alone.
[[noreturn]] void become(char** arguments, char** environment, int output, int null_input, pid_t launcher) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(127);  // it died before the line above
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::dup2(null_input, STDIN_FILENO);
  if (output >= 0) {
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
  }
  ::execve(arguments[0], arguments, environment);
  constexpr std::string_view kFailed = "the program cannot be started\n";
  (void)!::write(STDERR_FILENO, kFailed.data(), kFailed.size());
  ::_exit(127);
}

std::string tail(int descriptor, uint64_t begin) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return {};
  const uint64_t size = static_cast<uint64_t>(status.st_size);
  if (size <= begin) return {};
  const uint64_t from = std::max<uint64_t>(begin, size > kTailBytes ? size - kTailBytes : 0);
  std::string text(size - from, '\0');
  const ssize_t length = ::pread(descriptor, text.data(), text.size(), static_cast<off_t>(from));
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return text;
}

/// Without the time that lines of a log begin with: "2026-11-30 02:04:00.018 ".
std::string without_time(const std::string& line) {
  const size_t end = line.find_first_not_of("0123456789-:. ");
  const bool dated = end != std::string::npos && end > 18 && line[4] == '-' && line[13] == ':';
  return dated ? line.substr(end) : line;
}

std::string telling_line(const std::string& text) {
  std::string last;
  std::string error;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (const size_t redrawn = line.rfind('\r'); redrawn != std::string::npos) line.erase(0, redrawn + 1);
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    last = line;
    if (line.find(" error ") != std::string::npos || line.rfind("error ", 0) == 0) error = line;
  }
  std::string& told = error.empty() ? last : error;
  told = without_time(told);
  if (told.size() > kQuotedBytes) told = told.substr(0, kQuotedBytes) + " ...";
  return told;
}

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name ? std::string("SIG") + name : "signal " + std::to_string(number);
}

}  // namespace worker_process_detail

WorkerProcess::WorkerProcess(const Worker& worker) : rank_(worker.rank), log_file_(worker.log_file) {
  namespace detail = worker_process_detail;
  struct stat status {};
  if (!log_file_.empty() && ::stat(log_file_.c_str(), &status) == 0)
    log_begin_ = static_cast<uint64_t>(status.st_size);
  if (!worker.on_terminal) {
    output_ = ::memfd_create("osdn-output", MFD_CLOEXEC);
    if (output_ < 0)
      throw EnvironmentError("cannot keep the output of rank {}: {}", rank_, std::strerror(errno));
    ::fcntl(output_, F_SETFL, O_APPEND);
  }
  const File null_input = File::open_for_reading("/dev/null");
  std::vector<char*> arguments = detail::pointers(worker.arguments);
  std::vector<char*> environment = detail::pointers(worker.environment);
  const pid_t launcher = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0)
    detail::become(arguments.data(), environment.data(), output_, null_input.descriptor(), launcher);
  if (pid_ < 0) {
    const int reason = errno;
    if (output_ >= 0) ::close(output_);
    throw EnvironmentError("cannot start a process for rank {}: {}", rank_, std::strerror(reason));
  }
  started_pid_ = pid_;
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : rank_(other.rank_),
      pid_(std::exchange(other.pid_, -1)),
      started_pid_(other.started_pid_),
      output_(std::exchange(other.output_, -1)),
      log_file_(std::move(other.log_file_)),
      log_begin_(other.log_begin_) {}

WorkerProcess::~WorkerProcess() {
  if (running()) {
    kill();
    ::waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) ::close(output_);
}

std::optional<int> WorkerProcess::poll() {
  int status = 0;
  if (!running() || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  return status;
}

void WorkerProcess::signal(int number, int count) const {
  if (running()) ::sigqueue(pid_, number, sigval{.sival_int = count});
}

void WorkerProcess::kill() const {
  if (running()) ::kill(pid_, SIGKILL);
}

std::string WorkerProcess::name(const std::string& where) const {
  return fmt::format("rank {} (process {}{})", rank_, started_pid_, where);
}

std::string WorkerProcess::last_line() const {
  namespace detail = worker_process_detail;
  std::string found;
  if (const int log = log_file_.empty() ? -1 : ::open(log_file_.c_str(), O_RDONLY | O_CLOEXEC); log >= 0) {
    found = detail::telling_line(detail::tail(log, log_begin_));
    ::close(log);
  }
  if (found.empty() && output_ >= 0) found = detail::telling_line(detail::tail(output_, 0));
  return found;
}

bool WorkerProcess::stopped() const {
  if (!running()) return false;
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string text;
  std::getline(file, text);
  // "4711 (name with any character) T ..."
  const size_t end = text.rfind(')');
  if (end == std::string::npos || end + 2 >= text.size()) return false;
  return text[end + 2] == 'T' || text[end + 2] == 't';
}

std::optional<ExitCode> stop_code(int wait_status) {
  if (WIFEXITED(wait_status)) {
    const int code = WEXITSTATUS(wait_status);
    if (code == static_cast<int>(ExitCode::kInterrupted)) return ExitCode::kInterrupted;
    if (code == static_cast<int>(ExitCode::kTerminated)) return ExitCode::kTerminated;
    return std::nullopt;
  }
  const int number = WTERMSIG(wait_status);
  if (number == SIGINT) return ExitCode::kInterrupted;
  if (number == SIGTERM || number == SIGUSR1 || number == SIGHUP) return ExitCode::kTerminated;
  return std::nullopt;
}

Failure describe_failure(int wait_status, const std::string& name, const std::string& last_line) {
  namespace detail = worker_process_detail;
  Failure failure;
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    const bool fault = std::find(kFaults.begin(), kFaults.end(), number) != kFaults.end();
    failure.code = fault ? ExitCode::kInternalError : ExitCode::kEnvironmentError;
    failure.reason = fmt::format("{} died of {}{}", name, detail::signal_name(number),
                                 number == SIGKILL ? " (memory ran out, or somebody killed it)" : "");
  } else {
    const int code = WEXITSTATUS(wait_status);
    const bool known =
        code >= static_cast<int>(ExitCode::kUserError) && code <= static_cast<int>(ExitCode::kInternalError);
    failure.code = known ? static_cast<ExitCode>(code) : ExitCode::kEnvironmentError;
    // A wrong configuration and damaged data are the same after a restart.
    failure.curable = failure.code != ExitCode::kUserError && failure.code != ExitCode::kDataError;
    failure.reason = fmt::format("{} ended with exit code {}", name, code);
  }
  if (!last_line.empty()) failure.reason += "; its last line: " + last_line;
  return failure;
}

}  // namespace osdn::dist
