#include "base/fs.h"

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace osdn {
namespace {

std::string reason() { return std::strerror(errno); }

int open_or_throw(const std::string& path, int flags, const char* purpose) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (descriptor < 0) throw EnvironmentError("{}: cannot open for {}: {}", path, purpose, reason());
  return descriptor;
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

/// The process and host in a lock file's text, "process 4711 on host".
struct LockOwner {
  pid_t process = 0;  // 0: none
  std::string host;
};

LockOwner parse_owner(const std::string& text) {
  int process = 0;
  char host[256] = {};
  if (std::sscanf(text.c_str(), "process %d on %255[^\n]", &process, host) != 2) return {};
  return {.process = process, .host = host};
}

std::string owner_text() { return fmt::format("process {} on {}", ::getpid(), host_name()); }

/// Where the file system keeps no locks, what stands in the file decides (FileLock's rule in fs.h).
bool may_take_over(const LockOwner& owner) {
  if (owner.process == 0) return true;
  if (owner.host != host_name()) return false;
  return owner.process == ::getpid() || (::kill(owner.process, 0) != 0 && errno == ESRCH);
}

}  // namespace

File File::open_for_reading(const std::string& path) {
  return {open_or_throw(path, O_RDONLY, "reading"), path};
}
File File::create(const std::string& path) {
  return {open_or_throw(path, O_WRONLY | O_CREAT | O_TRUNC, "writing"), path};
}
File File::open_for_appending(const std::string& path) {
  return {open_or_throw(path, O_RDWR | O_CREAT | O_APPEND, "appending"), path};
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0 && ::close(descriptor_) != 0) log::warning("{}: close failed: {}", path_, reason());
}

size_t File::read(void* buffer, size_t size_bytes) {
  size_t done = 0;
  while (done < size_bytes) {
    const ssize_t got = ::read(descriptor_, static_cast<char*>(buffer) + done, size_bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw EnvironmentError("{}: read failed: {}", path_, reason());
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void File::write(const void* data, size_t size_bytes) {
  size_t done = 0;
  while (done < size_bytes) {
    const ssize_t put = ::write(descriptor_, static_cast<const char*>(data) + done, size_bytes - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw EnvironmentError("{}: writing {} bytes failed: {}", path_, size_bytes, reason());
    done += static_cast<size_t>(put);
  }
}

void File::sync() {
  if (::fsync(descriptor_) != 0) throw EnvironmentError("{}: fsync failed: {}", path_, reason());
}

void File::truncate(uint64_t size_bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(size_bytes)) != 0)
    throw EnvironmentError("{}: cannot truncate to {} bytes: {}", path_, size_bytes, reason());
}

uint64_t File::size_bytes() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw EnvironmentError("{}: fstat failed: {}", path_, reason());
  return static_cast<uint64_t>(status.st_size);
}

std::string read_file(const std::string& path) {
  if (std::filesystem::is_directory(path))
    throw EnvironmentError("{}: expected a file, found a directory", path);
  File file = File::open_for_reading(path);
  std::string content(file.size_bytes(), '\0');
  content.resize(file.read(content.data(), content.size()));
  // Files of /proc say 0 bytes, and others may grow meanwhile.
  char block[4096];
  while (const size_t size = file.read(block, sizeof block)) content.append(block, size);
  return content;
}

std::string read_named_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 && (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG))
    throw UserError("{}: cannot open for reading: {}", path, reason());
  if (S_ISDIR(status.st_mode)) throw UserError("{}: expected a file, found a directory", path);
  return read_file(path);
}

void atomic_write(const std::string& path, std::string_view content) {
  const std::string staged = fmt::format("{}.tmp-{}", path, ::getpid());
  try {
    File file = File::create(staged);
    file.write(content);
    file.sync();
    durable_rename(staged, path);
  } catch (...) {
    ::unlink(staged.c_str());
    throw;
  }
}

void durable_rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw EnvironmentError("{}: cannot rename to {}: {}", from, to, reason());
  sync_directory(parent_of(to));
}

void durable_exchange(const std::string& a, const std::string& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS)
      throw EnvironmentError("{}: cannot exchange with {}: {}", a, b, reason());
    const std::string aside = fmt::format("{}.old-{}", a, ::getpid());
    durable_rename(b, aside);
    durable_rename(a, b);
    durable_rename(aside, a);
  }
  sync_directory(parent_of(b));
}

void sync_directory(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw EnvironmentError("{}: cannot open the directory: {}", path, reason());
  const int status = ::fsync(descriptor);
  const int saved = errno;
  ::close(descriptor);
  errno = saved;
  // Some file systems cannot sync a directory and say so: their renames are as durable as they get.
  if (status != 0 && errno != EINVAL && errno != ENOTSUP)
    throw EnvironmentError("{}: fsync of the directory failed: {}", path, reason());
}

void create_directories(const std::string& path) {
  std::filesystem::path made;
  for (const std::filesystem::path& part : std::filesystem::path(path).lexically_normal()) {
    made /= part;
    std::error_code ignored;
    if (part.empty() || std::filesystem::is_directory(made, ignored)) continue;
    if (::mkdir(made.c_str(), 0777) == 0) {
      sync_directory(parent_of(made.string()));
      continue;
    }
    const int saved = errno;  // another process may have been faster
    if (!std::filesystem::is_directory(made, ignored))
      throw EnvironmentError("{}: cannot create the directory {}: {}", path, made.string(),
                             std::strerror(saved));
  }
}

uint64_t free_space_bytes(const std::string& path) {
  std::filesystem::path probe = std::filesystem::absolute(path);
  while (!std::filesystem::exists(probe) && probe.has_relative_path()) probe = probe.parent_path();
  struct statvfs status {};
  if (::statvfs(probe.c_str(), &status) != 0)
    throw EnvironmentError("{}: cannot ask for free space: {}", probe.string(), reason());
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

std::optional<FileLock> FileLock::try_acquire(const std::string& path, std::string* holder) {
  File file = File::open_for_appending(path);
  const bool taken = ::flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0;
  const int failure = taken ? 0 : errno;
  const bool no_locks = failure == ENOSYS || failure == ENOLCK || failure == EOPNOTSUPP || failure == EINVAL;
  if (!taken && !no_locks && failure != EWOULDBLOCK)
    throw EnvironmentError("{}: cannot lock: {}", path, std::strerror(failure));
  std::string text = read_file(path);
  if (!taken && (!no_locks || !may_take_over(parse_owner(text)))) {
    // A holder that has just taken the lock writes its name next.
    for (int attempt = 0; text.empty() && attempt < 20; ++attempt) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      text = read_file(path);
    }
    if (text.empty()) text = "another process";
    if (holder)
      *holder = no_locks
                    ? fmt::format("{} (its file system keeps no locks: if that process has ended, remove {})",
                                  text, path)
                    : text;
    return std::nullopt;
  }
  file.truncate(0);
  file.write(owner_text());
  if (no_locks) {
    // Two that start in the same moment: the last to write stays.
    file.sync();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (text = read_file(path); text != owner_text()) {
      if (holder) *holder = text;
      return std::nullopt;
    }
  }
  return FileLock(std::move(file));
}

FileLock::~FileLock() {
  // An orderly end leaves no name behind that a file system without locks would believe.
  if (file_.descriptor() >= 0 && ::ftruncate(file_.descriptor(), 0) != 0)
    log::warning("{}: cannot empty the lock file: {}", file_.path(), reason());
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "osdn-XXXXXX").string();
  if (!::mkdtemp(pattern.data()))
    throw EnvironmentError("{}: cannot create a temporary directory: {}", pattern, reason());
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code failure;
  std::filesystem::remove_all(path_, failure);
  if (failure) log::warning("{}: cannot remove: {}", path_, failure.message());
}

std::vector<std::string> glob_paths(const std::string& pattern) {
  ::glob_t found{};
  std::vector<std::string> paths;
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status != 0 && status != GLOB_NOMATCH)
    throw EnvironmentError("{}: cannot expand the pattern: {}", pattern, reason());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace osdn
