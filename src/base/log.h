// Logging to stderr and, once a run has a directory, to its log.txt as well. Every line is in the file when
// the call returns, so a crash loses none. Results of commands go to stdout, never through here. Thread-safe.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace osdn::log {

enum class Level { kDebug, kInfo, kWarning, kError };

void write(Level level, std::string_view message);
/// To the files alone: what a terminal shows in another form.
void write_to_files(Level level, std::string_view message);
void set_level(Level level);
/// From now on every line also goes, appended, to this file. Throws EnvironmentError when it can't be opened.
void add_file(const std::string& path);
/// The same, and the terminal gets no more: whatever else this process writes to stderr (libraries, a crash)
/// goes to the file too. For the ranks of a job that the terminal is not for.
void redirect_to_file(const std::string& path);
/// Of the file added last, or -1, also when stderr is that file: for the handlers of fatal signals
/// (base/crash.h).
int file_descriptor();

template <typename... Args>
void debug(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::kDebug, fmt::format(text, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::kInfo, fmt::format(text, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::kWarning, fmt::format(text, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::kError, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace osdn::log
