#include "apps/report_data.h"

#include <fmt/format.h>

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
constexpr const char* kLayerNames[] = {"q_geo",  "q_geo_plain", "beta_mean",     "write_strength_max",
                                       "d_mean", "d_at_box",    "retention_mean"};

double number_or_nan(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// Throws Json::exception for what is no metrics object; then nothing of it has been added.
void add_record(const Json& record, ReportRun* run) {
  const auto step = json_integer(record.at("step"));
  const auto tokens = json_integer(record.at("tokens"));
  const bool skipped = record.value("skipped", false);
  std::map<std::string, std::vector<double>> by_layer;
  const auto layers = record.find("layers");
  for (const char* name : kLayerNames) {
    if (layers == record.end() || !layers->contains(name)) continue;
    for (const Json& value : layers->at(name)) by_layer[name].push_back(number_or_nan(value));
  }
  run->tokens.emplace_back(step, tokens);
  if (skipped) run->skipped_steps.push_back(step);
  for (const char* name : kCurveNames) {
    const auto found = record.find(name);
    if (found == record.end() || !found->is_number()) continue;
    run->curves[name].steps.push_back(step);
    run->curves[name].values.push_back(found->get<double>());
  }
  for (auto& [name, values] : by_layer) {
    LayerCurves& curves = run->layers[name];
    if (!curves.values.empty() && curves.values.front().size() != values.size()) continue;
    curves.steps.push_back(step);
    curves.values.push_back(std::move(values));
  }
}

void read_metrics(const std::string& path, ReportRun* run) {
  const std::string text = read_file(path);
  int64_t line_number = 0;
  std::string first_problem;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // the last line is still being written, or its writer was killed
    ++line_number;
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    std::string problem;
    try {
      const Json record = Json::parse(line);
      const auto step = json_integer(record.at("step"));
      // Steps rise from line to line; two writers or a file put together by hand show here.
      if (!run->tokens.empty() && step <= run->tokens.back().first)
        problem = fmt::format("step {} after step {}", step, run->tokens.back().first);
      else
        add_record(record, run);
    } catch (const Json::exception& failure) {
      problem = failure.what();
    }
    if (problem.empty()) continue;
    if (first_problem.empty()) first_problem = fmt::format("{}:{}: {}", path, line_number, problem);
    run->damaged_lines.push_back(line_number);
  }
  if (run->damaged_lines.empty()) return;
  if (run->tokens.empty())
    throw DataError("{} (expected a metrics object with step and tokens; no line of the file is one)",
                    first_problem);
  log::warning("{} (this and {} other lines are left out)", first_problem, run->damaged_lines.size() - 1);
}

/// Steps between two lines that metrics.every_steps does not explain.
void find_gaps(ReportRun* run) {
  int64_t usual = run->config ? run->config->metrics.every_steps : std::numeric_limits<int64_t>::max();
  for (size_t i = 1; i < run->tokens.size(); ++i)
    usual = std::min(usual, run->tokens[i].first - run->tokens[i - 1].first);
  int64_t before = 0;
  for (const auto& [step, tokens] : run->tokens) {
    if (step - before > usual) run->gaps.emplace_back(before + 1, step - 1);
    before = step;
  }
}

/// "3, 7-9, 12 and 40 more"
std::string list_of(const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, ranges.size()); ++i) {
    const auto& [first, last] = ranges[i];
    text += fmt::format("{}{}", i ? ", " : "", first);
    if (last > first) text += fmt::format("-{}", last);
  }
  if (ranges.size() > kShown) text += fmt::format(" and {} more", ranges.size() - kShown);
  return text;
}

std::string list_of(const std::vector<int64_t>& numbers) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const int64_t number : numbers) {
    if (!ranges.empty() && ranges.back().second + 1 == number)
      ranges.back().second = number;
    else
      ranges.emplace_back(number, number);
  }
  return list_of(ranges);
}

int64_t count_event_files(const std::string& directory) {
  std::error_code failure;
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory, failure))
    if (entry.path().filename().string().rfind("events.out.tfevents.", 0) == 0) ++count;
  return count;
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
  // What stands beside the metrics says more about them; without it the curves are still worth seeing.
  const auto beside = [&](const char* name, auto read) {
    const std::string file = (directory / name).string();
    if (!fs::exists(file, failure)) return;
    try {
      read(file);
    } catch (const Error& problem) {
      log::warning("{}: left out of the comparison of configurations: {}", run.name, problem.what());
    }
  };
  beside("config.yaml", [&](const std::string& file) { run.config = config::load(file, {}); });
  beside("environment.json", [&](const std::string& file) { run.environment = read_json(file); });
  run.num_starts = report_data_detail::count_event_files((directory / "tensorboard").string());
  report_data_detail::find_gaps(&run);
  return run;
}

std::vector<std::string> notes_of(const ReportRun& run) {
  using report_data_detail::list_of;
  std::vector<std::string> notes;
  const auto several = [](size_t count, const char* one, const char* many) {
    return fmt::format("{} {}", count, count == 1 ? one : many);
  };
  if (!run.skipped_steps.empty())
    notes.push_back(fmt::format("{} skipped, loss or gradient not finite: {}",
                                several(run.skipped_steps.size(), "step", "steps"),
                                list_of(run.skipped_steps)));
  if (!run.damaged_lines.empty())
    notes.push_back(fmt::format("{} of metrics.jsonl damaged and left out: {}",
                                several(run.damaged_lines.size(), "line", "lines"),
                                list_of(run.damaged_lines)));
  if (!run.gaps.empty()) {
    size_t missing = 0;
    for (const auto& [first, last] : run.gaps) missing += static_cast<size_t>(last - first + 1);
    notes.push_back(
        fmt::format("no metrics of {}: {}", several(missing, "step", "steps"), list_of(run.gaps)));
  }
  if (run.num_starts > 1) notes.push_back(fmt::format("started {} times", run.num_starts));
  return notes;
}

LayerCurves thin(const LayerCurves& curves, size_t limit) {
  const size_t count = curves.steps.size();
  if (count <= limit || limit < 4) return curves;
  std::vector<size_t> kept = {0};
  const size_t num_stretches = (limit - 2) / 2;
  for (size_t stretch = 0; stretch < num_stretches; ++stretch) {
    const size_t first = 1 + stretch * (count - 2) / num_stretches;
    const size_t last = 1 + (stretch + 1) * (count - 2) / num_stretches;
    size_t low = first;
    size_t high = first;
    double lowest = std::numeric_limits<double>::infinity();
    double highest = -lowest;
    for (size_t i = first; i < last; ++i) {
      for (const double value : curves.values[i]) {
        if (value < lowest) lowest = value, low = i;
        if (value > highest) highest = value, high = i;
      }
    }
    kept.push_back(std::min(low, high));
    if (low != high) kept.push_back(std::max(low, high));
  }
  kept.push_back(count - 1);
  LayerCurves thinned;
  for (const size_t index : kept) {
    thinned.steps.push_back(curves.steps[index]);
    thinned.values.push_back(curves.values[index]);
  }
  return thinned;
}

std::vector<double> tail_means(const LayerCurves& curves, size_t count) {
  std::vector<double> means;
  const size_t begin = curves.values.size() - std::min(count, curves.values.size());
  for (size_t layer = 0; !curves.values.empty() && layer < curves.values.front().size(); ++layer) {
    double sum = 0;
    double terms = 0;
    for (size_t i = begin; i < curves.values.size(); ++i) {
      if (!std::isfinite(curves.values[i][layer])) continue;
      sum += curves.values[i][layer];
      terms += 1;
    }
    means.push_back(terms > 0 ? sum / terms : std::numeric_limits<double>::quiet_NaN());
  }
  return means;
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
