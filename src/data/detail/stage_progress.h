// Progress of one stage of preparation, and how much it does at once.
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

/// Bytes of input that may be under way at once, so that every worker always has some.
inline int64_t pipeline_bytes(const config::Prepare& settings) {
  return (num_workers(settings) + 1) * (int64_t{4} << 20);
}

class StageProgress {
 public:
  StageProgress(std::function<void(const PrepareProgress&)> report, std::string stage, int64_t bytes_total,
                int64_t bytes_before = 0)
      : report_(std::move(report)),
        state_{.stage = std::move(stage),
               .bytes_done = bytes_before,
               .bytes_before = bytes_before,
               .bytes_total = bytes_total} {
    if (report_) report_(state_);  // now, so that rates count from here
  }

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
