// The three kinds of error (docs/contributing.md): what a user or the machine got wrong (exceptions below,
// each with the exit code that the program ends with), what a programmer got wrong (OSDN_ASSERT), and CUDA
// errors (cuda.h). A user error says where, what was expected, what came, and what to do. Caught only in
// apps/ and at thread boundaries.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace osdn {

/// Exit codes of the program.
enum class ExitCode : int {
  kDone = 0,
  kUserError = 2,
  kEnvironmentError = 3,
  kDataError = 4,
  kInternalError = 5,
  kInterrupted = 130,  // SIGINT, after a checkpoint
  kTerminated = 143,   // SIGTERM or SIGUSR1, after a checkpoint
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Wrong configuration, arguments or input that the user can correct. Exit code 2.
class UserError : public Error {
 public:
  template <typename... Args>
  explicit UserError(fmt::format_string<Args...> text, Args&&... args)
      : Error(ExitCode::kUserError, fmt::format(text, std::forward<Args>(args)...)) {}
};

/// The machine lacks something: no GPU, no space, no permission, no library. Exit code 3.
class EnvironmentError : public Error {
 public:
  template <typename... Args>
  explicit EnvironmentError(fmt::format_string<Args...> text, Args&&... args)
      : Error(ExitCode::kEnvironmentError, fmt::format(text, std::forward<Args>(args)...)) {}
};

/// A shard, checkpoint or other file of ours is damaged, truncated or foreign. Exit code 4.
class DataError : public Error {
 public:
  template <typename... Args>
  explicit DataError(fmt::format_string<Args...> text, Args&&... args)
      : Error(ExitCode::kDataError, fmt::format(text, std::forward<Args>(args)...)) {}
};

/// A CUDA call failed; carries the runtime's code. Exit code 3.
class CudaError : public Error {
 public:
  CudaError(int status, const std::string& message)
      : Error(ExitCode::kEnvironmentError, message), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

/// A broken invariant: a fault of this program, never of its input. Exit code 5.
class InternalError : public Error {
 public:
  template <typename... Args>
  explicit InternalError(fmt::format_string<Args...> text, Args&&... args)
      : Error(ExitCode::kInternalError, fmt::format(text, std::forward<Args>(args)...)) {}
};

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line,
                                   const std::string& message);

}  // namespace osdn

/// Programmer errors; on in every build; never reachable by input.
#define OSDN_ASSERT(condition, ...)                                                                         \
  do {                                                                                                      \
    if (!(condition)) ::osdn::assertion_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
