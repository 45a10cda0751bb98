#include "dist/detail/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace osdn::dist::detail {

Watchdog::Watchdog(Options options) : options_(std::move(options)), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::watch(Task task) {
  std::vector<Task> finished;
  const std::lock_guard lock(mutex_);
  finished.swap(finished_);
  tasks_.push_back({.task = std::move(task), .since = std::chrono::steady_clock::now()});
}

std::optional<std::string> Watchdog::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

/// Drops what is finished; says what is wrong with the oldest that is not. Holds the lock.
std::optional<std::string> Watchdog::inspect() {
  try {
    while (!tasks_.empty() && tasks_.front().task.finished()) {
      finished_.push_back(std::move(tasks_.front().task));
      tasks_.pop_front();
    }
  } catch (const std::exception& reason) {
    return fmt::format("{}: {}", tasks_.front().task.what, reason.what());
  }
  if (tasks_.empty()) return std::nullopt;
  const Task& task = tasks_.front().task;
  const std::chrono::milliseconds timeout = task.timeout.count() > 0 ? task.timeout : options_.timeout;
  std::string reason = options_.broken ? options_.broken() : "";
  if (reason.empty()) {
    if (std::chrono::steady_clock::now() - tasks_.front().since < timeout) return std::nullopt;
    reason = fmt::format(
        "not finished within {} s; another rank has stopped, is far behind, or cannot be reached "
        "(distributed.timeout_seconds)",
        static_cast<double>(timeout.count()) / 1000);
  }
  return fmt::format("{}{}: {}", task.what, task.where ? ": " + task.where() : "", reason);
}

namespace watchdog_detail {

[[noreturn]] void end_process() {
  log::error("the process does not come to its end after this failure: it is ended now");
  ::_exit(static_cast<int>(ExitCode::kEnvironmentError));
}

}  // namespace watchdog_detail

void Watchdog::run() {
  const auto period =
      std::clamp(options_.timeout / 20, std::chrono::milliseconds(5), std::chrono::milliseconds(500));
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, period, [&] { return stop_; })) {
    failure_ = inspect();
    if (!failure_) continue;
    log::error("{}", *failure_);
    if (options_.outlives_owner)
      std::thread([grace = options_.grace] {
        std::this_thread::sleep_for(grace);
        watchdog_detail::end_process();
      }).detach();
    // On a thread of its own: what is to end the waiting has been seen to wait itself.
    std::thread ending([this] {
      options_.end_waiting();
      const std::lock_guard ended(mutex_);
      ended_waiting_ = true;
      changed_.notify_all();
    });
    if (!changed_.wait_for(lock, options_.grace, [&] { return stop_ && ended_waiting_; }))
      watchdog_detail::end_process();
    lock.unlock();
    ending.join();
    return;
  }
}

}  // namespace osdn::dist::detail
