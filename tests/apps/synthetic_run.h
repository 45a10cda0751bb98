// A run directory as training leaves it, with curves that look like a run's.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "base/fs.h"
#include "config/config.h"
#include "config/yaml.h"
#include "metrics/step_record.h"

namespace apps_test {

struct SyntheticRun {
  std::string name = "osdn";
  int64_t steps = 400;
  int64_t num_layers = 4;
  double gain = 0.0;  // lowers the loss's end and q_geo
  bool has_osdn = true;
};

/// The metrics of one step: smooth curves plus a jitter that depends on the step alone.
inline osdn::metrics::StepRecord synthetic_record(const SyntheticRun& run, int64_t step) {
  const double progress = static_cast<double>(step) / static_cast<double>(run.steps);
  const double jitter = std::sin(static_cast<double>(step * 12345 % 997));
  osdn::metrics::StepRecord record;
  record.step = step;
  record.tokens = step * 4096;
  record.loss = 2.6 - run.gain + 5.0 * std::exp(-8 * progress) + 0.08 * jitter;
  record.learning_rate =
      step < 40 ? 1e-3 * static_cast<double>(step) / 40 : 1e-3 * (0.55 + 0.45 * std::cos(3.1416 * progress));
  record.grad_norm = 0.4 + 3 * std::exp(-10 * progress) + 0.1 * std::fabs(jitter);
  record.skipped = step == 7;
  record.tokens_per_second = 21000 - 2000 * run.gain + 600 * jitter;
  record.step_milliseconds = 195 + 5 * jitter;
  record.data_wait_milliseconds = 0.2;
  record.memory_gib = 1.2;
  if (step % 10 == 0) {
    osdn::metrics::ResidualFields all;
    all.q_geo_plain = 0.55 - 0.2 * progress;
    all.q_geo = run.has_osdn ? all.q_geo_plain - 0.12 * progress - run.gain / 10 : all.q_geo_plain;
    all.beta_mean = 0.5 + 0.1 * progress;
    all.write_strength_max = 1.1;
    all.d_mean = run.has_osdn ? 1 + 0.15 * progress : 1;
    all.d_min = run.has_osdn ? 0.67 : 1;
    all.d_max = run.has_osdn ? 1.5 : 1;
    all.d_at_box = run.has_osdn ? 0.1 * progress : 0;
    all.retention_mean = std::numeric_limits<double>::quiet_NaN();
    record.residual = all;
    for (int64_t layer = 0; layer < run.num_layers; ++layer) {
      osdn::metrics::ResidualFields one = all;
      one.q_geo = all.q_geo * (0.8 + 0.1 * static_cast<double>(layer));
      one.q_geo_plain = all.q_geo_plain * (0.8 + 0.1 * static_cast<double>(layer));
      one.d_mean = all.d_mean * (1 + 0.02 * static_cast<double>(layer));
      record.residual_layers.push_back(one);
    }
  }
  if (step % 100 == 0)
    record.validation = osdn::metrics::Validation{record.loss + 0.05, std::exp(record.loss + 0.05), 1.1};
  return record;
}

/// Writes runs/NAME below `parent` and returns its path.
inline std::string write_run(const std::string& parent, const SyntheticRun& run) {
  const std::string directory = parent + "/" + run.name;
  osdn::create_directories(directory);
  std::string lines;
  for (int64_t step = 1; step <= run.steps; ++step)
    lines += osdn::metrics::to_json_line(synthetic_record(run, step)) + "\n";
  osdn::atomic_write(directory + "/metrics.jsonl", lines);
  osdn::config::Config config;
  config.run.name = "run";  // the directory tells, not the name in it
  config.data.train = {{.path = "shards/train-*.h5"}};
  if (run.has_osdn) config.model.osdn = osdn::config::Osdn{};
  osdn::atomic_write(directory + "/config.yaml", osdn::config::dump(config));
  return directory;
}

}  // namespace apps_test
