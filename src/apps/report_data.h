// What `osdn report` shows of a run: the curves of its metrics.jsonl, thinned for the screen, and its closing
// values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/config.h"

namespace osdn::apps {

/// One metric over a run; steps ascend.
struct Curve {
  std::vector<int64_t> steps;
  std::vector<double> values;  // as steps; finite
};

/// One metric of every delta layer over a run.
struct LayerCurves {
  std::vector<int64_t> steps;
  std::vector<std::vector<double>> values;  // [steps][layers]; NaN where the metric had no value
};

struct ReportRun {
  std::string name;  // of the run directory
  std::string directory;
  std::optional<config::Config> config;             // of its config.yaml
  std::map<std::string, Curve> curves;              // by metric name, every step
  std::map<std::string, LayerCurves> layers;        // by metric name, at residual steps
  std::vector<std::pair<int64_t, int64_t>> tokens;  // (step, tokens consumed), every step
  int64_t num_skipped = 0;                          // steps without an update
};

/// Reads a run directory or a metrics.jsonl. A torn last line (a run that goes on) is left out. Throws
/// UserError when there is nothing to read, DataError naming the line when one is no metrics object.
ReportRun read_report_run(const std::string& path);

/// At most `limit` points: first, last, and the lowest and highest of equal stretches between, so that spikes
/// stay.
Curve thin(const Curve& curve, size_t limit);

/// Every point replaced by a mean over both directions, with weights that fall by half every `half_life`
/// points: it does not lag behind a falling curve.
Curve smooth(const Curve& curve, double half_life);

/// Mean of the last `count` values, or NaN without any.
double tail_mean(const Curve& curve, size_t count);

/// Median of all values, or NaN without any.
double median(const Curve& curve);

}  // namespace osdn::apps
