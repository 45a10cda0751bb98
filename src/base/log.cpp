#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

#include "base/error.h"

namespace osdn::log {
namespace {

/// All sinks behind one with a lock: a file may be added while other threads write.
spdlog::sinks::dist_sink_mt& sinks() {
  static const std::shared_ptr<spdlog::sinks::dist_sink_mt> instance = [] {
    auto terminal = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    terminal->set_pattern("%Y-%m-%d %H:%M:%S %^%l%$ %v");
    auto made = std::make_shared<spdlog::sinks::dist_sink_mt>();
    made->add_sink(std::move(terminal));
    return made;
  }();
  return *instance;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    // The sinks live for the whole program: this is a view of them, not an owner.
    const std::shared_ptr<spdlog::sinks::sink> view(std::shared_ptr<void>(), &sinks());
    auto made = std::make_shared<spdlog::logger>("osdn", view);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
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

}  // namespace

void write(Level level, std::string_view message) { logger().log(to_spdlog(level), "{}", message); }

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

void add_file(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
    sinks().add_sink(std::move(sink));
  } catch (const spdlog::spdlog_ex& failure) {
    throw EnvironmentError("{}: cannot open the log file: {}", path, failure.what());
  }
}

}  // namespace osdn::log
