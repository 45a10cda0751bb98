// Runs the program as a user does: arguments, exit code, what it printed; and starts it in the background to
// be signalled.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace osdn::test {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out;
  std::string err;
};

/// A started program. Output goes to files in `directory`, read when it has ended.
class Process {
 public:
  Process(const std::vector<std::string>& arguments, const std::string& directory,
          const std::vector<std::pair<std::string, std::string>>& environment = {})
      : out_(directory + "/stdout.txt"), err_(directory + "/stderr.txt") {
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ > 0) return;
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
    redirect(STDOUT_FILENO, out_, O_WRONLY | O_CREAT | O_TRUNC);
    redirect(STDERR_FILENO, err_, O_WRONLY | O_CREAT | O_TRUNC);
    if (::chdir(directory.c_str()) != 0) ::_exit(126);
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Process() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Process id while it runs.
  pid_t id() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  bool running() {
    if (pid_ <= 0) return false;
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == 0) return true;
    finish(status);
    return false;
  }

  ProcessResult wait() {
    if (pid_ > 0) {
      int status = 0;
      ::waitpid(pid_, &status, 0);
      finish(status);
    }
    return {.exit_code = exit_code_, .out = slurp(out_), .err = slurp(err_)};
  }

 private:
  static void redirect(int descriptor, const std::string& path, int flags) {
    const int file = ::open(path.c_str(), flags, 0644);
    if (file < 0 || ::dup2(file, descriptor) < 0) ::_exit(125);
    ::close(file);
  }
  static std::string slurp(const std::string& path) {
    std::ifstream file(path);
    std::stringstream content;
    content << file.rdbuf();
    return content.str();
  }
  void finish(int status) {
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
  }

  pid_t pid_ = -1;
  int exit_code_ = -1;
  std::string out_;
  std::string err_;
};

/// Runs the osdn program of this build in `directory`.
inline ProcessResult run_osdn(std::vector<std::string> arguments, const std::string& directory,
                              const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  arguments.insert(arguments.begin(), OSDN_BINARY);
  return Process(arguments, directory, environment).wait();
}

}  // namespace osdn::test
