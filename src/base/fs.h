// Files that are complete or absent: everything the program writes under a final name goes through
// atomic_write or a staged path that is fsynced and then renamed. Errors name the path, what was attempted
// and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace osdn {

/// An open file descriptor. Moves only; closes itself; every failure throws EnvironmentError naming the path.
class File {
 public:
  static File open_for_reading(const std::string& path);
  /// Creates or truncates.
  static File create(const std::string& path);
  /// Creates or appends.
  static File open_for_appending(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  /// Up to `size_bytes`; 0 at the end of the file.
  size_t read(void* buffer, size_t size_bytes);
  /// All of it, or throws (ENOSPC included, with the size that was wanted).
  void write(const void* data, size_t size_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Returns after the data is on the medium.
  void sync();
  void truncate(uint64_t size_bytes);
  uint64_t size_bytes() const;
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

 private:
  File(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  int descriptor_ = -1;
  std::string path_;
};

/// Whole content of a file. Throws EnvironmentError when it can't be read.
std::string read_file(const std::string& path);

/// read_file() of a name that the user gave: UserError when it leads to nothing or to a directory.
std::string read_named_file(const std::string& path);

/// Writes to a temporary name beside `path`, fsyncs, renames over `path`, fsyncs the directory.
void atomic_write(const std::string& path, std::string_view content);

/// Renames and fsyncs the parent directory: after the return the new name survives a power cut.
void durable_rename(const std::string& from, const std::string& to);

/// Exchanges two names in one step where the file system can, else by renames (a kill between them leaves `b`
/// absent and both contents under other names); then fsyncs the parent of `b`.
void durable_exchange(const std::string& a, const std::string& b);

void sync_directory(const std::string& path);
/// Creates what is missing of the path; the new names survive a power cut.
void create_directories(const std::string& path);

/// Bytes that an unprivileged process may still write on the file system that holds `path` (or its nearest
/// parent).
uint64_t free_space_bytes(const std::string& path);

/// An exclusive lock on a file, held for the object's life and released by the kernel when the process dies,
/// on whatever host: a killed holder leaves no stale lock. On a file system without locks the file's text
/// stands in, which names the holder: one that has ended on this host does not count, one of another host
/// counts until somebody removes the file.
class FileLock {
 public:
  /// Undefined result when another process holds it; `holder` then receives "process 4711 on host", and what
  /// to do where the file system has no locks.
  static std::optional<FileLock> try_acquire(const std::string& path, std::string* holder);
  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) noexcept = default;
  ~FileLock();

 private:
  explicit FileLock(File file) : file_(std::move(file)) {}
  File file_;
};

/// A directory under the system's temporary folder, removed with everything in it by the destructor.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Paths that match a glob pattern (`*`, `?`, `[...]`), sorted bytewise; a pattern without wildcards yields
/// itself when it exists.
std::vector<std::string> glob_paths(const std::string& pattern);

}  // namespace osdn
