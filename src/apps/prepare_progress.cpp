#include "apps/prepare_progress.h"

#include <memory>
#include <string>

#include "base/log.h"
#include "metrics/progress.h"

namespace osdn::apps {
namespace prepare_progress_detail {

constexpr int64_t kUnitBytes = 1'000'000;

/// The stage that is shown at the moment.
struct Shown {
  std::string stage;
  std::unique_ptr<metrics::Progress> progress;
};

}  // namespace prepare_progress_detail

std::function<void(const data::PrepareProgress&)> show_prepare_progress() {
  using prepare_progress_detail::kUnitBytes;
  const auto shown = std::make_shared<prepare_progress_detail::Shown>();
  return [shown](const data::PrepareProgress& report) {
    if (report.stage != shown->stage) {
      shown->progress.reset();
      shown->stage = report.stage;
      if (report.bytes_total == 0) {
        log::info("{}", report.stage);  // of unknown length
      } else {
        shown->progress = std::make_unique<metrics::Progress>(
            report.stage + ", MB", (report.bytes_total + kUnitBytes - 1) / kUnitBytes,
            report.bytes_before / kUnitBytes);
      }
    }
    if (!shown->progress) return;
    const double rate = report.seconds > 0 ? static_cast<double>(report.bytes_done - report.bytes_before) /
                                                 1e6 / report.seconds
                                           : 0.0;
    const bool ended = report.bytes_done >= report.bytes_total;
    const int64_t done =
        ended ? (report.bytes_total + kUnitBytes - 1) / kUnitBytes : report.bytes_done / kUnitBytes;
    shown->progress->update(done, fmt::format("{:.1f} MB/s", rate));
    if (ended) shown->progress.reset();
  };
}

}  // namespace osdn::apps
