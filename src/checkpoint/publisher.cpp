#include "checkpoint/publisher.h"

#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/detail/team_talk.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/retention.h"

namespace osdn::checkpoint {
namespace publisher_detail {

// Manifest, directory entries and the file systems' own rounding.
constexpr uint64_t kSlackBytes = uint64_t{64} << 10;

/// Which directory a path names: not that of another file system mounted there later, nor one made anew.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
};

Identity identity_of(const std::string& directory) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0)
    throw EnvironmentError("{}: the directory of the checkpoints has vanished: {}", directory,
                           std::strerror(errno));
  return {.device = status.st_dev, .inode = status.st_ino};
}

Identity prepare_directory(const std::string& directory) {
  create_directories(directory);
  const std::string probe = directory + "/" + temporary_name(0);
  remove_tree(probe);
  create_directories(probe);
  remove_tree(probe);
  return identity_of(directory);
}

uint64_t needed_bytes(const PendingCheckpoint& pending) {
  uint64_t sum = kSlackBytes + pending.bytes_of_others;
  for (const PendingFile& file : pending.files) sum += file.size_bytes;
  return sum;
}

void check_space(const std::string& directory, const PendingCheckpoint& pending) {
  const uint64_t needed = needed_bytes(pending);
  const uint64_t available = free_space_bytes(directory);
  if (available < needed)
    throw EnvironmentError(
        "{}: not enough space for the checkpoint of step {}: needed {} bytes ({:.2f} GiB), available {} "
        "({:.2f} GiB); "
        "free some, or lower checkpoint.keep_last",
        directory, pending.step, needed, double(needed) / (1 << 30), available,
        double(available) / (1 << 30));
}

/// Makes `staged` and puts the files of this process there, durable; returns their manifest entries.
std::vector<ManifestFile> write_files(const std::string& staged, const PendingCheckpoint& pending) {
  std::vector<ManifestFile> written;
  for (const PendingFile& file : pending.files) {
    const std::string path = staged + "/" + file.name;
    const Digest128 digest = file.write(path);
    written.push_back({file.name, std::filesystem::file_size(path), digest.hex()});
  }
  return written;
}

void write_manifest(const std::string& staged, const PendingCheckpoint& pending,
                    std::vector<ManifestFile> files) {
  Manifest manifest;
  manifest.step = pending.step;
  manifest.num_optimizer_shards = pending.num_optimizer_shards;
  manifest.files = std::move(files);
  File file = File::create(staged + "/" + kManifestFile);
  file.write(to_text(manifest));
  file.sync();
  sync_directory(staged);
}

/// Gives the staged directory its final name; what had that name before is gone only after it.
void publish(const std::string& staged, const std::string& target) {
  if (!std::filesystem::exists(std::filesystem::symlink_status(target))) {
    durable_rename(staged, target);
    return;
  }
  durable_exchange(staged, target);
  remove_tree(staged);
}

}  // namespace publisher_detail

using detail::TeamTalk;

struct Publisher::Impl {
  std::string directory;
  config::Checkpoint options;
  publisher_detail::Identity identity;
  Retention retention;
  TeamTalk team;
  std::atomic<int64_t> newest{-1};

  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  std::optional<PendingCheckpoint> queued;  // set: waiting for, or being written by, the thread
  bool stop = false;
  std::exception_ptr failure;
  std::thread thread;  // started by the first asynchronous save

  Impl(std::string where, config::Checkpoint wanted, Team members)
      : directory(std::move(where)),
        options(wanted),
        identity(members.rank == 0 ? publisher_detail::prepare_directory(directory)
                                   : publisher_detail::identity_of(directory)),
        retention(directory, wanted.keep_last, wanted.keep_every_steps),
        team(std::move(members)) {}

  /// A run whose medium is gone must not go on in a directory of the same name on another one.
  void check_directory() const {
    const publisher_detail::Identity now = publisher_detail::identity_of(directory);
    if (now.device != identity.device || now.inode != identity.inode)
      throw EnvironmentError(
          "{}: is another directory than when the run began: it was moved or removed, or its file system was "
          "unmounted",
          directory);
  }

  void write(const PendingCheckpoint& pending) {
    if (team.leads())
      lead(pending);
    else
      follow(pending);
    newest = pending.step;
  }

  void lead(const PendingCheckpoint& pending) {
    const std::string name = step_name(pending.step);
    const std::string staged = directory + "/" + temporary_name(pending.step);
    try {
      check_directory();
      publisher_detail::check_space(directory, pending);
      remove_tree(staged);
      create_directories(staged);
      team.announce(pending.step, staged);
      std::vector<ManifestFile> files = publisher_detail::write_files(staged, pending);
      for (ManifestFile& file : team.collect(pending.step)) files.push_back(std::move(file));
      publisher_detail::write_manifest(staged, pending, std::move(files));
      publisher_detail::publish(staged, directory + "/" + name);
    } catch (const std::exception& reason) {
      remove_tree(staged);
      throw EnvironmentError(
          "checkpoint of step {} was not written ({} bytes): {}; complete checkpoints are untouched",
          pending.step, publisher_detail::needed_bytes(pending), reason.what());
    }
    keep_house(name);
  }

  void follow(const PendingCheckpoint& pending) {
    try {
      check_directory();
      const std::string staged = team.await_place(pending.step);
      const std::vector<ManifestFile> files = publisher_detail::write_files(staged, pending);
      sync_directory(staged);
      team.report(pending.step, files);
    } catch (const std::exception& reason) {
      team.report_failure(pending.step, reason.what());
      throw EnvironmentError("checkpoint of step {}: the share of this rank was not written: {}",
                             pending.step, reason.what());
    }
  }

  /// The checkpoint `name` counts already: what fails here is a warning, and done by the next save or start.
  void keep_house(const std::string& name) {
    try {
      const std::string latest = directory + "/" + kLatestFile;
      std::error_code absent;
      if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(latest, absent)) ||
          read_file(latest) != name + "\n")
        atomic_write(latest, name + "\n");
      retention.apply(name);
    } catch (const std::exception& reason) {
      log::warning("checkpoint {} is complete, but: {}", name, reason.what());
    }
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return queued || stop; });
      if (!queued) return;
      lock.unlock();
      std::exception_ptr caught;
      try {
        write(*queued);
      } catch (...) {
        caught = std::current_exception();
      }
      lock.lock();
      queued.reset();
      if (caught) failure = caught;
      changed.notify_all();
    }
  }

  void check() {
    const std::lock_guard lock(mutex);
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !queued; });
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }
};

Publisher::Publisher(std::string checkpoints_directory, config::Checkpoint options, Team team)
    : impl_(std::make_unique<Impl>(std::move(checkpoints_directory), options, std::move(team))) {}

Publisher::~Publisher() {
  // Whoever still waits for a rank here is on its way out after a failure, and that rank may be gone.
  impl_->team.give_up();
  try {
    wait();
  } catch (const std::exception& failure) {
    log::error("{}", failure.what());
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->changed.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void Publisher::save(PendingCheckpoint pending) {
  wait();
  if (!impl_->options.asynchronous) {
    impl_->write(pending);
    return;
  }
  // What can be known now is said now.
  impl_->check_directory();
  if (impl_->team.leads()) publisher_detail::check_space(impl_->directory, pending);
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->thread.joinable()) impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
  impl_->queued = std::move(pending);
  impl_->changed.notify_all();
}

void Publisher::adopt(const std::string& name) {
  impl_->check_directory();
  impl_->keep_house(name);
}

void Publisher::check() { impl_->check(); }

void Publisher::wait() { impl_->wait(); }

int64_t Publisher::newest_step() const { return impl_->newest; }

}  // namespace osdn::checkpoint
