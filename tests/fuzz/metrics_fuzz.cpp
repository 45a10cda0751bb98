// metrics.jsonl as `osdn report` reads it, up to the curves that its page draws.
#include <cmath>

#include "apps/report_data.h"
#include "tests/fuzz/support.h"

namespace osdn::fuzz {

void run(std::string_view input) {
  static ScratchFile file;
  file.assign(input);
  accepts([&] {
    const apps::ReportRun run = apps::read_report_run(file.path());
    for (const auto& [name, curve] : run.curves) {
      require(curve.steps.size() == curve.values.size(), "every value has its step");
      for (const double value : curve.values) require(std::isfinite(value), "values are finite");
      apps::thin(curve, 8);
      apps::smooth(curve, 4);
      apps::median(curve);
      apps::tail_mean(curve, 3);
    }
    for (const auto& [name, layers] : run.layers)
      require(layers.steps.size() == layers.values.size(), "every row has its step");
  });
}

}  // namespace osdn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  osdn::fuzz::run(osdn::fuzz::view(bytes, size));
  return 0;
}
