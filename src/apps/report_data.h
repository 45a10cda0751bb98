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
  std::vector<int64_t> skipped_steps;               // loss or gradient not finite: no update
  std::vector<std::pair<int64_t, int64_t>> gaps;  // (first, last) steps that should have a line and have none
  std::vector<int64_t> damaged_lines;             // of metrics.jsonl, from 1; left out
  int64_t num_starts = 0;                         // of the program, by its event files; 0: unknown
  Json environment;                               // environment.json; null without one
};

/// Reads a run directory or a metrics.jsonl. A torn last line (a run that goes on) is left out, and so are
/// damaged ones, which are kept by number. Throws UserError when there is nothing to read, DataError when
/// there are lines and no metrics object among them.
ReportRun read_report_run(const std::string& path);

/// What a reader must know beside the curves: skipped steps, lines that are damaged or missing, restarts. One
/// sentence each.
std::vector<std::string> notes_of(const ReportRun& run);

/// The curves of layers at about `limit` steps: first, last, and of equal stretches between those at which
/// any layer is lowest and highest.
LayerCurves thin(const LayerCurves& curves, size_t limit);

/// Mean of each layer's last `count` values; NaN for a layer without any.
std::vector<double> tail_means(const LayerCurves& curves, size_t count);

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
