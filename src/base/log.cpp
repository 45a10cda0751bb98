#include "base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/fs.h"

namespace osdn::log {
namespace {

std::atomic<int> newest_descriptor{-1};
std::atomic<bool> terminal_silent{false};
// The logger whose lines go to files alone has this name.
constexpr const char* kFilesOnly = "files";

/// A file without a buffer: a line is one write, so what was logged is there however the process ends.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(File file) : file_(std::move(file)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    try {
      file_.write(line.data(), line.size());
    } catch (const Error& failure) {
      // A log that cannot be written must not end the work; said once, and tried again with the next line.
      if (!std::exchange(failed_, true)) std::fprintf(stderr, "%s; lines go on to stderr\n", failure.what());
    }
  }
  void flush_() override {}

 private:
  File file_;
  bool failed_ = false;
};

class TerminalSink final : public spdlog::sinks::stderr_color_sink_mt {
 public:
  void log(const spdlog::details::log_msg& message) override {
    if (message.logger_name != kFilesOnly && !terminal_silent)
      spdlog::sinks::stderr_color_sink_mt::log(message);
  }
};

/// All sinks behind one with a lock: a file may be added while other threads write.
spdlog::sinks::dist_sink_mt& sinks() {
  static const std::shared_ptr<spdlog::sinks::dist_sink_mt> instance = [] {
    auto terminal = std::make_shared<TerminalSink>();
    terminal->set_pattern("%Y-%m-%d %H:%M:%S %^%l%$ %v");
    auto made = std::make_shared<spdlog::sinks::dist_sink_mt>();
    made->add_sink(std::move(terminal));
    return made;
  }();
  return *instance;
}

std::shared_ptr<spdlog::logger> make_logger(const char* name) {
  // The sinks live for the whole program: this is a view of them, not an owner.
  const std::shared_ptr<spdlog::sinks::sink> view(std::shared_ptr<void>(), &sinks());
  auto made = std::make_shared<spdlog::logger>(name, view);
  made->flush_on(spdlog::level::trace);
  return made;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = make_logger("osdn");
  return *instance;
}

spdlog::logger& file_logger() {
  static const std::shared_ptr<spdlog::logger> instance = make_logger(kFilesOnly);
  return *instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

void add_sink(File file) {
  auto sink = std::make_shared<FileSink>(std::move(file));
  sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  sinks().add_sink(std::move(sink));
}

}  // namespace

void write(Level level, std::string_view message) { logger().log(to_spdlog(level), "{}", message); }

void write_to_files(Level level, std::string_view message) {
  file_logger().log(to_spdlog(level), "{}", message);
}

void set_level(Level level) {
  logger().set_level(to_spdlog(level));
  file_logger().set_level(to_spdlog(level));
}

void add_file(const std::string& path) {
  File file = File::open_for_appending(path);
  newest_descriptor = file.descriptor();
  add_sink(std::move(file));
}

void redirect_to_file(const std::string& path) {
  File file = File::open_for_appending(path);
  if (::dup2(file.descriptor(), STDERR_FILENO) < 0)
    throw EnvironmentError("{}: cannot write the log there: {}", path, std::strerror(errno));
  terminal_silent = true;
  add_sink(std::move(file));
}

int file_descriptor() { return newest_descriptor; }

}  // namespace osdn::log
