// Watches work that a device does in the background: its host threads wait for the device, so nothing but a
// thread beside them can see that it never ends. Free of LibTorch.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace osdn::dist::detail {

class Watchdog {
 public:
  struct Task {
    std::string what;                      // begins the message of its failure
    std::function<bool()> finished;        // asked again and again; throws when the work has failed
    std::chrono::milliseconds timeout{0};  // where it is not that of the options
    std::function<std::string()> where{};  // continues `what` when the time is out; may be empty
  };

  struct Options {
    std::chrono::milliseconds timeout{0};  // of a task, from watch() on
    std::function<void()> end_waiting;     // must make the host's waits for the device return; may block
    /// Why what is not finished never will be, as far as one knows before its time is out; empty otherwise.
    std::function<std::string()> broken{};
    /// After a failure, for the process to come to its end by itself, end_waiting included; then it is ended
    /// with exit code 3.
    std::chrono::milliseconds grace{10000};
    /// Ends the process so also where the watchdog is gone by then: releasing memory and events may wait for
    /// a collective that never ends.
    bool outlives_owner = false;
  };

  explicit Watchdog(Options options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Tasks end in the order in which they are given. They are destroyed here and with the watchdog, never by
  /// its thread: to destroy an event of CUDA waits for another thread that waits for the device.
  void watch(Task task);
  /// The first failure, if there was one.
  std::optional<std::string> failure() const;

 private:
  struct Watched {
    Task task;
    std::chrono::steady_clock::time_point since;
  };
  void run();
  std::optional<std::string> inspect();

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Watched> tasks_;
  std::vector<Task> finished_;  // to be destroyed by whoever calls watch()
  std::optional<std::string> failure_;
  bool stop_ = false;
  bool ended_waiting_ = false;
  std::thread thread_;
};

}  // namespace osdn::dist::detail
