#include "apps/report_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "config/yaml.h"

namespace osdn::apps {
namespace report_data_detail {

constexpr const char* kCurveNames[] = {"loss",
                                       "validation_loss",
                                       "validation_bits_per_byte",
                                       "q_geo",
                                       "q_geo_plain",
                                       "q_floor_share",
                                       "beta_mean",
                                       "write_strength_max",
                                       "d_mean",
                                       "d_min",
                                       "d_max",
                                       "d_at_box",
                                       "retention_mean",
                                       "grad_norm",
                                       "learning_rate",
                                       "mfu",
                                       "memory_gib",
                                       "tokens_per_second",
                                       "step_milliseconds",
                                       "data_wait_milliseconds"};
constexpr const char* kLayerNames[] = {"q_geo", "q_geo_plain", "beta_mean", "d_mean", "d_at_box"};

double number_or_nan(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

void add_record(const Json& record, ReportRun* run) {
  const auto step = record.at("step").get<int64_t>();
  run->tokens.emplace_back(step, record.at("tokens").get<int64_t>());
  run->num_skipped += record.value("skipped", false) ? 1 : 0;
  for (const char* name : kCurveNames) {
    const auto found = record.find(name);
    if (found == record.end() || !found->is_number()) continue;
    run->curves[name].steps.push_back(step);
    run->curves[name].values.push_back(found->get<double>());
  }
  const auto layers = record.find("layers");
  if (layers == record.end()) return;
  for (const char* name : kLayerNames) {
    const auto found = layers->find(name);
    if (found == layers->end()) continue;
    std::vector<double> values;
    for (const Json& value : *found) values.push_back(number_or_nan(value));
    run->layers[name].steps.push_back(step);
    run->layers[name].values.push_back(std::move(values));
  }
}

void read_metrics(const std::string& path, ReportRun* run) {
  const std::string text = read_file(path);
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // the last line is still being written, or its writer was killed
    ++line_number;
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    try {
      add_record(Json::parse(line), run);
    } catch (const Json::exception& failure) {
      throw DataError("{}:{}: expected a metrics object with step and tokens: {}", path, line_number,
                      failure.what());
    }
  }
}

/// Replaces every value by the weighted mean of itself and those before it.
void average_past(double half_life, std::vector<double>* values) {
  const double keep = std::exp2(-1.0 / half_life);
  double sum = 0;
  double weight = 0;  // of what has been summed: without it the first points would lean towards 0
  for (double& value : *values) {
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    value = sum / weight;
  }
}

}  // namespace report_data_detail

ReportRun read_report_run(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code failure;
  const bool is_file = fs::is_regular_file(path, failure);
  const fs::path absolute = fs::absolute(path).lexically_normal();
  const fs::path directory = is_file || !absolute.has_filename() ? absolute.parent_path() : absolute;
  const std::string metrics = is_file ? absolute.string() : (directory / "metrics.jsonl").string();
  if (!fs::is_regular_file(metrics, failure))
    throw UserError("{}: expected a run directory with a metrics.jsonl in it (such as runs/NAME), found none",
                    path);
  ReportRun run;
  run.directory = directory.string();
  run.name = directory.filename().string();
  report_data_detail::read_metrics(metrics, &run);
  if (run.tokens.empty()) throw UserError("{}: holds no finished step yet; train first", metrics);
  const std::string config = (directory / "config.yaml").string();
  if (!fs::exists(config, failure)) return run;
  try {
    run.config = config::load(config, {});
  } catch (const Error& problem) {
    log::warning("{}: left out of the comparison of configurations: {}", run.name, problem.what());
  }
  return run;
}

Curve thin(const Curve& curve, size_t limit) {
  const size_t count = curve.values.size();
  if (count <= limit || limit < 4) return curve;
  std::vector<size_t> kept = {0};
  const size_t num_stretches = (limit - 2) / 2;
  for (size_t stretch = 0; stretch < num_stretches; ++stretch) {
    const auto first =
        curve.values.begin() + static_cast<std::ptrdiff_t>(1 + stretch * (count - 2) / num_stretches);
    const auto last =
        curve.values.begin() + static_cast<std::ptrdiff_t>(1 + (stretch + 1) * (count - 2) / num_stretches);
    const auto [low, high] = std::minmax_element(first, last);
    const auto a = static_cast<size_t>(low - curve.values.begin());
    const auto b = static_cast<size_t>(high - curve.values.begin());
    kept.push_back(std::min(a, b));
    if (a != b) kept.push_back(std::max(a, b));
  }
  kept.push_back(count - 1);
  Curve thinned;
  for (const size_t index : kept) {
    thinned.steps.push_back(curve.steps[index]);
    thinned.values.push_back(curve.values[index]);
  }
  return thinned;
}

Curve smooth(const Curve& curve, double half_life) {
  std::vector<double> backward(curve.values.rbegin(), curve.values.rend());
  report_data_detail::average_past(half_life, &backward);
  Curve smoothed = curve;
  report_data_detail::average_past(half_life, &smoothed.values);
  const size_t count = curve.values.size();
  for (size_t i = 0; i < count; ++i) smoothed.values[i] = (smoothed.values[i] + backward[count - 1 - i]) / 2;
  return smoothed;
}

double tail_mean(const Curve& curve, size_t count) {
  const size_t used = std::min(count, curve.values.size());
  double sum = 0;
  for (size_t i = curve.values.size() - used; i < curve.values.size(); ++i) sum += curve.values[i];
  return used ? sum / static_cast<double>(used) : std::numeric_limits<double>::quiet_NaN();
}

double median(const Curve& curve) {
  if (curve.values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::vector<double> values = curve.values;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace osdn::apps
