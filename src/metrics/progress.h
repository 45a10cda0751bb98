// Progress of long work: one line redrawn in place on a terminal, and plain lines at growing intervals in the
// log (stderr when that is no terminal, log.txt always). With rate and time left, from a sliding window.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace osdn::metrics {

/// Units of work a second over the last minute, so that a slow start or an early pause is forgotten.
class RateMeter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// `done` units were finished at `now`; both never decrease.
  void add(TimePoint now, int64_t done);
  /// 0 while nothing can be said.
  double per_second() const;
  /// Negative while nothing can be said.
  double seconds_left(int64_t total) const;

 private:
  std::deque<std::pair<TimePoint, int64_t>> window_;
};

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
  std::chrono::steady_clock::time_point started_;
  std::optional<std::chrono::steady_clock::time_point> shown_;   // on the terminal
  std::optional<std::chrono::steady_clock::time_point> logged_;  // as a line
  RateMeter rate_;
};

/// "title [####      ] 12/40  3.10/s  9 s left  text" in at most `width` characters: where they are few the
/// bar becomes shorter (below 79 it goes), then the last fields of the text go, which two blanks divide.
std::string progress_bar(const std::string& title, int64_t done, int64_t total, const RateMeter& rate,
                         const std::string& text, size_t width);

/// "title: 12 of 40 (30.0 %), 3.10/s, 9 s left, text".
std::string progress_line(const std::string& title, int64_t done, int64_t total, const RateMeter& rate,
                          const std::string& text);

/// "1 h 02 min", "3 min 20 s", "12 s".
std::string format_duration(double seconds);

}  // namespace osdn::metrics
