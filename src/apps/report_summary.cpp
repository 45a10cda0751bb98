#include "apps/report_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "config/yaml.h"

namespace osdn::apps {
namespace report_summary_detail {

const Curve& curve_or_none(const ReportRun& run, const char* name) {
  static const Curve kNone;
  const auto found = run.curves.find(name);
  return found == run.curves.end() ? kNone : found->second;
}

}  // namespace report_summary_detail

size_t tail_length(const ReportRun& run) { return std::clamp<size_t>(run.tokens.size() / 20, 1, 50); }

std::vector<ClosingValue> closing_values(const std::vector<ReportRun>& runs) {
  using report_summary_detail::curve_or_none;
  std::vector<ClosingValue> rows;
  const auto add = [&](const char* label, const char* key, Better better, auto value_of) {
    ClosingValue row = {label, key, better, {}};
    for (const ReportRun& run : runs) row.values.push_back(value_of(run));
    const bool any =
        std::any_of(row.values.begin(), row.values.end(), [](double value) { return std::isfinite(value); });
    if (any) rows.push_back(std::move(row));
  };
  const auto last = [](const char* key) {
    return [key](const ReportRun& run) { return tail_mean(curve_or_none(run, key), 1); };
  };
  const auto tail = [](const char* key) {
    return [key](const ReportRun& run) { return tail_mean(curve_or_none(run, key), kTailMeasurements); };
  };
  add("Validation loss", "validation_loss", Better::kLower, last("validation_loss"));
  add("Validation perplexity", "validation_perplexity", Better::kLower,
      [](const ReportRun& run) { return std::exp(tail_mean(curve_or_none(run, "validation_loss"), 1)); });
  add("Validation bits per byte", "validation_bits_per_byte", Better::kLower,
      last("validation_bits_per_byte"));
  add("Training loss", "loss", Better::kLower,
      [](const ReportRun& run) { return tail_mean(curve_or_none(run, "loss"), tail_length(run)); });
  add("q_geo", "q_geo", Better::kLower, tail("q_geo"));
  add("q_geo_plain", "q_geo_plain", Better::kLower, tail("q_geo_plain"));
  add("beta_mean", "beta_mean", Better::kNeither, tail("beta_mean"));
  add("d_mean", "d_mean", Better::kNeither, tail("d_mean"));
  add("d_at_box", "d_at_box", Better::kNeither, tail("d_at_box"));
  add("retention_mean", "retention_mean", Better::kNeither, tail("retention_mean"));
  add("Tokens per second (median)", "tokens_per_second", Better::kHigher,
      [](const ReportRun& run) { return median(curve_or_none(run, "tokens_per_second")); });
  add("Memory, GiB", "memory_gib", Better::kNeither, last("memory_gib"));
  add("Steps", "steps", Better::kNeither,
      [](const ReportRun& run) { return double(run.tokens.back().first); });
  add("Tokens", "tokens", Better::kNeither,
      [](const ReportRun& run) { return double(run.tokens.back().second); });
  add("Skipped steps", "skipped", Better::kNeither,
      [](const ReportRun& run) { return double(run.skipped_steps.size()); });
  return rows;
}

int64_t best_of(const ClosingValue& row) {
  if (row.better == Better::kNeither || row.values.size() < 2) return -1;
  std::vector<double> costs;  // lower is better; infinite where there is no value
  for (const double value : row.values)
    costs.push_back(std::isfinite(value) ? (row.better == Better::kLower ? value : -value) : HUGE_VAL);
  const auto best = std::min_element(costs.begin(), costs.end());
  if (*best == HUGE_VAL || std::count(costs.begin(), costs.end(), *best) > 1) return -1;
  return best - costs.begin();
}

std::vector<std::string> display_names(const std::vector<ReportRun>& runs) {
  std::vector<std::string> names;
  for (const ReportRun& run : runs) {
    const auto same =
        std::count_if(runs.begin(), runs.end(), [&](const ReportRun& o) { return o.name == run.name; });
    names.push_back(same > 1 ? run.directory : run.name);
  }
  return names;
}

Json configuration_differences(const std::vector<ReportRun>& runs) {
  Json rows = Json::array();
  std::map<std::string, std::vector<std::string>> by_key;
  const auto base =
      std::find_if(runs.begin(), runs.end(), [](const ReportRun& run) { return run.config.has_value(); });
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].config) continue;
    for (const std::string& line : config::differences(*base->config, *runs[i].config)) {
      const size_t colon = line.find(": ");  // "key: of the first -> of this"
      const size_t arrow = line.find(" -> ", colon);
      if (colon == std::string::npos || arrow == std::string::npos) continue;
      const std::string key = line.substr(0, colon);
      auto& values = by_key[key];
      if (values.empty()) values.assign(runs.size(), line.substr(colon + 2, arrow - colon - 2));
      values[i] = line.substr(arrow + 4);
    }
  }
  by_key.erase("run.name");  // stands above every column
  for (auto& [key, values] : by_key) {
    for (size_t i = 0; i < runs.size(); ++i)
      if (!runs[i].config) values[i] = "?";
    rows.push_back(Json::object({{"key", key}, {"values", values}}));
  }
  for (const char* field :
       {"device", "gpu", "world_size", "processor", "threads", "host", "program", "commit"}) {
    std::vector<std::string> values;
    for (const ReportRun& run : runs) {
      const bool known = run.environment.is_object() && run.environment.contains(field);
      const Json value = known ? run.environment[field] : Json("?");
      values.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    }
    if (std::count(values.begin(), values.end(), values.front()) ==
        static_cast<std::ptrdiff_t>(values.size()))
      continue;
    rows.push_back(Json::object({{"key", std::string("environment: ") + field}, {"values", values}}));
  }
  return rows;
}

std::string report_table(const std::vector<ReportRun>& runs) {
  const std::vector<std::string> names = display_names(runs);
  std::string text = fmt::format("{:<28}", "");
  for (const std::string& name : names)
    text += fmt::format("  {:>{}}", name, std::max<size_t>(name.size(), 14));
  text += "\n";
  for (const auto& row : closing_values(runs)) {
    text += fmt::format("{:<28}", row.label);
    for (size_t i = 0; i < row.values.size(); ++i) {
      const size_t width = std::max<size_t>(names[i].size(), 14);
      const double value = row.values[i];
      const bool whole = std::isfinite(value) && value == std::floor(value) && std::fabs(value) < 1e15;
      if (!std::isfinite(value))
        text += fmt::format("  {:>{}}", "-", width);
      else if (whole)
        text += fmt::format("  {:>{}}", static_cast<int64_t>(value), width);
      else
        text += fmt::format("  {:>{}.5g}", value, width);
    }
    text += "\n";
  }
  return text;
}

}  // namespace osdn::apps
