// Progress of long work on stderr: one line redrawn in place on a terminal, plain lines at growing intervals otherwise.
// With rate and time left, from a sliding window.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>

namespace osdn::metrics {

class Progress {
 public:
  /// `total` units of work, `done` of them before now (a resumed run).
  Progress(std::string title, int64_t total, int64_t done);
  /// Ends the line on a terminal.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `text` is shown beside the counter, e.g. "loss 3.412 q_geo 0.301 12,345 tokens/s".
  void update(int64_t done, const std::string& text);

 private:
  std::string title_;
  int64_t total_ = 0;
  bool terminal_ = false;
  std::chrono::steady_clock::time_point last_shown_;
  std::deque<std::pair<std::chrono::steady_clock::time_point, int64_t>> window_;
};

/// "1 h 02 min", "3 min 20 s", "12 s".
std::string format_duration(double seconds);

}  // namespace osdn::metrics
