#include "metrics/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/log.h"

namespace osdn::metrics {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr size_t kUsualWidth = 80;

size_t terminal_width() {
  struct winsize size {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualWidth;
  return size.ws_col;
}

// One that can go back to the start of its line, that is.
bool is_terminal() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

double fraction(int64_t done, int64_t total) {
  return total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 1.0;
}

std::string rate_text(const RateMeter& rate) {
  const double per_second = rate.per_second();
  if (per_second <= 0) return {};
  return per_second >= 1 ? fmt::format("{:.2f}/s", per_second) : fmt::format("{:.2f} s each", 1 / per_second);
}

std::string joined(const std::string& start, const std::string& separator, const RateMeter& rate,
                   int64_t done, int64_t total, const std::string& text) {
  std::string line = start;
  if (const std::string speed = rate_text(rate); !speed.empty()) line += separator + speed;
  const double left = rate.seconds_left(total);
  if (left >= 0 && done < total) line += separator + format_duration(left) + " left";
  if (!text.empty()) line += separator + text;
  return line;
}

}  // namespace

void RateMeter::add(TimePoint now, int64_t done) {
  constexpr Seconds kWindow{60};
  window_.emplace_back(now, done);
  // One entry older than the window stays, so that work slower than the window still has a rate.
  while (window_.size() > 2 && now - window_[1].first >= kWindow) window_.pop_front();
}

double RateMeter::per_second() const {
  if (window_.size() < 2) return 0;
  const double seconds = Seconds(window_.back().first - window_.front().first).count();
  return seconds > 0 ? static_cast<double>(window_.back().second - window_.front().second) / seconds : 0;
}

double RateMeter::seconds_left(int64_t total) const {
  const double rate = per_second();
  if (rate <= 0) return -1;
  return static_cast<double>(std::max<int64_t>(0, total - window_.back().second)) / rate;
}

Progress::Progress(std::string title, int64_t total, int64_t done)
    : title_(std::move(title)),
      total_(total),
      terminal_(is_terminal()),
      started_(std::chrono::steady_clock::now()) {
  rate_.add(started_, done);
}

Progress::~Progress() {
  if (terminal_ && shown_) std::fputs("\n", stderr);
}

void Progress::update(int64_t done, const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  rate_.add(now, done);
  const auto due = [&](const std::optional<std::chrono::steady_clock::time_point>& last, double interval) {
    return !last || done >= total_ || Seconds(now - *last).count() >= interval;
  };
  if (terminal_ && due(shown_, 0.1)) {
    shown_ = now;
    // Back to the first column at the end: a log line that comes next starts there.
    const std::string bar = progress_bar(title_, done, total_, rate_, text, terminal_width() - 1);
    std::fprintf(stderr, "\r%s\x1b[K\r", bar.c_str());
    std::fflush(stderr);
  }
  // Logs of a day-long job stay readable: a line every 5 seconds at first, every minute in the end.
  if (!due(logged_, std::clamp(Seconds(now - started_).count() / 10, 5.0, 60.0))) return;
  logged_ = now;
  const std::string line = progress_line(title_, done, total_, rate_, text);
  if (terminal_)
    log::write_to_files(log::Level::kInfo, line);
  else
    log::info("{}", line);
}

std::string progress_bar(const std::string& title, int64_t done, int64_t total, const RateMeter& rate,
                         const std::string& text, size_t width) {
  constexpr size_t kMostCells = 20;
  constexpr size_t kFewestCells = 5;
  constexpr size_t kBrackets = 3;  // and the blank before them
  const std::string fields = joined(fmt::format(" {}/{}", done, total), "  ", rate, done, total, text);
  const size_t used = title.size() + kBrackets + fields.size();
  size_t cells = width > used ? std::min(width - used, kMostCells) : 0;
  if (width + 1 >= kUsualWidth) cells = std::max(cells, kFewestCells);
  std::string line = title;
  if (cells >= kFewestCells) {
    const auto filled = static_cast<size_t>(fraction(done, total) * static_cast<double>(cells));
    line += fmt::format(" [{}{}]", std::string(filled, '#'), std::string(cells - filled, ' '));
  }
  line += fields;
  if (line.size() <= width) return line;
  const size_t end = line.rfind("  ", width);  // whole fields only, for half a number misleads
  return line.substr(0, end == std::string::npos ? width : end);
}

std::string progress_line(const std::string& title, int64_t done, int64_t total, const RateMeter& rate,
                          const std::string& text) {
  const std::string start =
      fmt::format("{}: {} of {} ({:.1f} %)", title, done, total, 100 * fraction(done, total));
  return joined(start, ", ", rate, done, total, text);
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole >= 86400) return fmt::format("{} d {:02} h", whole / 86400, whole % 86400 / 3600);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

}  // namespace osdn::metrics
