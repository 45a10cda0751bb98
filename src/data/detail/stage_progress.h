// Progress of one stage of preparation, and how many workers it uses.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "config/config.h"
#include "data/prepare.h"

namespace osdn::data::detail {

inline int64_t num_workers(const config::Prepare& settings) {
  return settings.workers > 0 ? settings.workers : std::max<int64_t>(std::thread::hardware_concurrency(), 1);
}

class StageProgress {
 public:
  StageProgress(std::function<void(const PrepareProgress&)> report, std::string stage, int64_t bytes_total)
      : report_(std::move(report)), state_{.stage = std::move(stage), .bytes_total = bytes_total} {}

  void add(int64_t bytes) {
    state_.bytes_done += bytes;
    state_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    if (report_) report_(state_);
  }

 private:
  std::function<void(const PrepareProgress&)> report_;
  PrepareProgress state_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace osdn::data::detail
