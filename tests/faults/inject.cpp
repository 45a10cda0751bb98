// The calls are made by syscall(): no look-up of the functions that are replaced here, and nothing to
// initialise.
#undef _FORTIFY_SOURCE
#include "tests/faults/inject.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace osdn::faults {
namespace {

struct Armed {
  Plan plan;
  std::atomic<int64_t> count{0};
  std::atomic<bool> exhausted{false};  // kFailOn has struck
  int record = -1;
};

// Never destroyed: calls come until the process ends.
std::atomic<Armed*> armed{nullptr};

std::string path_of(int descriptor) {
  char link[64];
  char target[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t size = ::readlink(link, target, sizeof target);
  return size > 0 ? std::string(target, static_cast<size_t>(size)) : std::string();
}

std::string path_of(int directory, const char* path) {
  if (path[0] == '/') return path;
  char current[PATH_MAX];
  const std::string base = directory != AT_FDCWD               ? path_of(directory)
                           : ::getcwd(current, sizeof current) ? std::string(current)
                                                               : std::string();
  return base + "/" + path;
}

bool needs_space(const char* kind) {
  return std::strcmp(kind, "write") == 0 || std::strcmp(kind, "create") == 0 ||
         std::strcmp(kind, "mkdir") == 0;
}

Action judge(const char* kind, const std::string& path, const std::string& target) {
  Armed* const now = armed;
  if (!now || path.compare(0, now->plan.under.size(), now->plan.under) != 0) return Action::kNone;
  const std::string line =
      std::string(kind) + " " + path + (target.empty() ? std::string() : " -> " + target) + "\n";
  if (line.find(now->plan.match) == std::string::npos) return Action::kNone;
  if (now->record >= 0) (void)!::syscall(SYS_write, now->record, line.data(), line.size());
  if (now->exhausted && needs_space(kind)) return Action::kFail;
  if (++now->count != now->plan.at) return Action::kNone;
  if (now->plan.action == Action::kFailOn) {
    now->exhausted = true;
    return Action::kFail;
  }
  return now->plan.action;
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

/// Makes the call, or what the plan makes of it. `half` is the call for half as much, of writes alone.
template <typename Call, typename Half>
long disturbed(Action action, Call call, Half half) {
  switch (action) {
    case Action::kFail:
    case Action::kFailOn:
      errno = armed.load()->plan.error;
      return -1;
    case Action::kShort:
      return half();
    case Action::kTorn:
      half();
      die();
    case Action::kKillAfter:
      call();
      die();
    case Action::kNone:
      break;
  }
  return call();
}

template <typename Call>
long disturbed(Action action, Call call) {
  return disturbed(action, call, call);
}

Action action_named(const std::string& name, int* error) {
  static const std::pair<const char*, int> kErrors[] = {
      {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EROFS", EROFS}, {"EIO", EIO}, {"ENOLCK", ENOLCK}};
  for (const auto& [text, number] : kErrors)
    if (name == text) {
      *error = number;
      return number == EIO ? Action::kFail : Action::kFailOn;
    }
  if (name == "short") return Action::kShort;
  if (name == "torn") return Action::kTorn;
  if (name == "kill") return Action::kKillAfter;
  return Action::kNone;
}

__attribute__((constructor)) void arm_from_environment() {
  const char* under = std::getenv("OSDN_FAULT_UNDER");
  if (!under) return;
  const auto get = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  Plan plan;
  plan.under = under;
  plan.match = get("OSDN_FAULT_MATCH");
  plan.record = get("OSDN_FAULT_RECORD");
  plan.at = std::atoll(get("OSDN_FAULT_AT").c_str());
  plan.action = action_named(get("OSDN_FAULT_ACTION"), &plan.error);
  arm(plan);
}

long open_file(int directory, const char* path, int flags, mode_t mode) {
  const auto call = [&] { return ::syscall(SYS_openat, directory, path, flags, mode); };
  if ((flags & (O_CREAT | O_TRUNC)) == 0) return call();
  return disturbed(judge("create", path_of(directory, path), ""), call);
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

void arm(const Plan& plan) {
  auto* const made = new Armed;
  made->plan = plan;
  if (!plan.record.empty())
    made->record = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, plan.record.c_str(),
                                              O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  armed = made;
}

}  // namespace osdn::faults

namespace faults = osdn::faults;

extern "C" {

#define OSDN_FAULTS_OPEN(name)                                               \
  int name(const char* path, int flags, ...) {                               \
    va_list arguments;                                                       \
    va_start(arguments, flags);                                              \
    const mode_t mode = faults::mode_of(flags, arguments);                   \
    va_end(arguments);                                                       \
    return static_cast<int>(faults::open_file(AT_FDCWD, path, flags, mode)); \
  }
#define OSDN_FAULTS_OPENAT(name)                                              \
  int name(int directory, const char* path, int flags, ...) {                 \
    va_list arguments;                                                        \
    va_start(arguments, flags);                                               \
    const mode_t mode = faults::mode_of(flags, arguments);                    \
    va_end(arguments);                                                        \
    return static_cast<int>(faults::open_file(directory, path, flags, mode)); \
  }
OSDN_FAULTS_OPEN(open)
OSDN_FAULTS_OPEN(open64)
OSDN_FAULTS_OPENAT(openat)
OSDN_FAULTS_OPENAT(openat64)

ssize_t write(int descriptor, const void* data, size_t size) {
  return faults::disturbed(
      faults::judge("write", faults::path_of(descriptor), ""),
      [&] { return ::syscall(SYS_write, descriptor, data, size); },
      [&] { return ::syscall(SYS_write, descriptor, data, (size + 1) / 2); });
}

ssize_t writev(int descriptor, const struct iovec* parts, int count) {
  return faults::disturbed(
      faults::judge("write", faults::path_of(descriptor), ""),
      [&] { return ::syscall(SYS_writev, descriptor, parts, count); },
      [&] { return ::syscall(SYS_write, descriptor, parts[0].iov_base, (parts[0].iov_len + 1) / 2); });
}

#define OSDN_FAULTS_PWRITE(name)                                                            \
  ssize_t name(int descriptor, const void* data, size_t size, off64_t offset) {             \
    return faults::disturbed(                                                               \
        faults::judge("write", faults::path_of(descriptor), ""),                            \
        [&] { return ::syscall(SYS_pwrite64, descriptor, data, size, offset); },            \
        [&] { return ::syscall(SYS_pwrite64, descriptor, data, (size + 1) / 2, offset); }); \
  }
OSDN_FAULTS_PWRITE(pwrite)
OSDN_FAULTS_PWRITE(pwrite64)

#define OSDN_FAULTS_TRUNCATE(name)                                                                          \
  int name(int descriptor, off64_t size) noexcept {                                                         \
    return static_cast<int>(faults::disturbed(faults::judge("truncate", faults::path_of(descriptor), ""),   \
                                              [&] { return ::syscall(SYS_ftruncate, descriptor, size); })); \
  }
OSDN_FAULTS_TRUNCATE(ftruncate)
OSDN_FAULTS_TRUNCATE(ftruncate64)

int fsync(int descriptor) {
  return static_cast<int>(faults::disturbed(faults::judge("sync", faults::path_of(descriptor), ""),
                                            [&] { return ::syscall(SYS_fsync, descriptor); }));
}

int fdatasync(int descriptor) { return fsync(descriptor); }

int renameat2(int from_directory, const char* from, int to_directory, const char* to,
              unsigned int flags) noexcept {
  return static_cast<int>(faults::disturbed(
      faults::judge("rename", faults::path_of(from_directory, from), faults::path_of(to_directory, to)),
      [&] { return ::syscall(SYS_renameat2, from_directory, from, to_directory, to, flags); }));
}

int renameat(int from_directory, const char* from, int to_directory, const char* to) noexcept {
  return renameat2(from_directory, from, to_directory, to, 0);
}

int rename(const char* from, const char* to) noexcept { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int mkdirat(int directory, const char* path, mode_t mode) noexcept {
  return static_cast<int>(faults::disturbed(faults::judge("mkdir", faults::path_of(directory, path), ""),
                                            [&] { return ::syscall(SYS_mkdirat, directory, path, mode); }));
}

int mkdir(const char* path, mode_t mode) noexcept { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int directory, const char* path, int flags) noexcept {
  return static_cast<int>(faults::disturbed(faults::judge("remove", faults::path_of(directory, path), ""),
                                            [&] { return ::syscall(SYS_unlinkat, directory, path, flags); }));
}

int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int remove(const char* path) noexcept {
  const int status = unlink(path);
  return status != 0 && errno == EISDIR ? rmdir(path) : status;
}

int flock(int descriptor, int operation) noexcept {
  return static_cast<int>(faults::disturbed(faults::judge("lock", faults::path_of(descriptor), ""),
                                            [&] { return ::syscall(SYS_flock, descriptor, operation); }));
}

}  // extern "C"
