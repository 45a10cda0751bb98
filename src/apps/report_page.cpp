#include "apps/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "apps/report_summary.h"
#include "base/error.h"
#include "base/json.h"

// Written by cmake/EmbedFile.cmake.
namespace osdn::embedded {
extern const unsigned char kChartJs[];
extern const size_t kChartJsSize;
extern const unsigned char kReportPage[];
extern const size_t kReportPageSize;
}  // namespace osdn::embedded

namespace osdn::apps {
namespace report_page_detail {

constexpr size_t kMaxPoints = 1000;      // of one curve on the page: a screen has hardly more columns
constexpr size_t kMaxLayerPoints = 200;  // of one layer's curve
constexpr size_t kMaxMarks = 200;        // skipped steps and gaps that are drawn
constexpr const char* kSmoothed[] = {"loss", "grad_norm", "tokens_per_second", "step_milliseconds"};

/// Six significant digits: more cannot be seen, and pages of long runs stay small. Null for what is not
/// finite.
Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

Json to_json(const Curve& full) {
  const Curve curve = thin(full, kMaxPoints);
  Json values = Json::array();
  for (const double value : curve.values) values.push_back(rounded(value));
  return Json::object({{"x", curve.steps}, {"y", std::move(values)}});
}

Json to_json(const LayerCurves& full) {
  const LayerCurves curves = thin(full, kMaxLayerPoints);
  Json rows = Json::array();
  for (const std::vector<double>& row : curves.values) {
    Json values = Json::array();
    for (const double value : row) values.push_back(rounded(value));
    rows.push_back(std::move(values));
  }
  return Json::object({{"x", curves.steps}, {"y", std::move(rows)}});
}

/// Of each layer metric the closing values; of q_geo, whose layers are drawn over time, the curves too.
Json layer_data(const ReportRun& run) {
  Json data = Json::object();
  for (const auto& [name, curves] : run.layers) {
    Json ends = Json::array();
    for (const double value : tail_means(curves, kTailMeasurements)) ends.push_back(rounded(value));
    data[name]["ends"] = std::move(ends);
    if (name == "q_geo") data[name]["curves"] = to_json(curves);
  }
  return data;
}

/// The first of a list that may be as long as the run.
template <typename T>
std::vector<T> first_of(const std::vector<T>& values) {
  return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(std::min(values.size(), kMaxMarks))};
}

/// Few points of (step, tokens): between them the page interpolates.
Json token_points(const ReportRun& run) {
  const size_t stride = (run.tokens.size() + kMaxLayerPoints - 1) / kMaxLayerPoints;
  Json points = Json::array();
  for (size_t i = 0; i < run.tokens.size(); ++i)
    if ((run.tokens.size() - 1 - i) % stride == 0 || i == 0)
      points.push_back({run.tokens[i].first, run.tokens[i].second});
  return points;
}

Json page_data(const std::vector<ReportRun>& runs) {
  Json data = Json::object({{"runs", Json::array()},
                            {"closing", Json::array()},
                            {"differences", configuration_differences(runs)}});
  const std::vector<std::string> names = display_names(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    const ReportRun& run = runs[i];
    Json curves = Json::object();
    for (const auto& [name, curve] : run.curves) curves[name] = to_json(curve);
    for (const char* name : kSmoothed) {
      const auto found = run.curves.find(name);
      if (found == run.curves.end()) continue;
      const double half_life = std::max(2.0, static_cast<double>(found->second.values.size()) / 100);
      curves[std::string(name) + "_smooth"] = to_json(smooth(found->second, half_life));
    }
    data["runs"].push_back(Json::object({{"name", names[i]},
                                         {"directory", run.directory},
                                         {"tail_steps", tail_length(run)},
                                         {"tokens", token_points(run)},
                                         {"notes", notes_of(run)},
                                         {"skipped", first_of(run.skipped_steps)},
                                         {"gaps", first_of(run.gaps)},
                                         {"curves", std::move(curves)},
                                         {"layers", layer_data(run)}}));
  }
  for (const ClosingValue& row : closing_values(runs)) {
    Json values = Json::array();
    for (const double value : row.values) values.push_back(rounded(value));
    data["closing"].push_back(Json::object(
        {{"label", row.label}, {"key", row.key}, {"values", std::move(values)}, {"best", best_of(row)}}));
  }
  return data;
}

/// JSON that may stand inside a script element: no "</script" or "<!--" can appear in it.
std::string script_safe(const Json& data) {
  std::string text;
  for (const char c : json_text(data)) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  return text;
}

}  // namespace report_page_detail

std::string report_page(const std::vector<ReportRun>& runs) {
  OSDN_ASSERT(!runs.empty(), "a report needs a run");
  const std::string_view page(reinterpret_cast<const char*>(embedded::kReportPage),
                              embedded::kReportPageSize);
  const std::string_view chart(reinterpret_cast<const char*>(embedded::kChartJs), embedded::kChartJsSize);
  const std::string data = report_page_detail::script_safe(report_page_detail::page_data(runs));
  std::string html;
  html.reserve(page.size() + chart.size() + data.size());
  // Placeholders are found in the page alone: what was put in is never searched.
  for (size_t position = 0;;) {
    const size_t open = page.find("{{", position);
    html += page.substr(position, open - position);
    if (open == std::string_view::npos) return html;
    const size_t close = page.find("}}", open);
    OSDN_ASSERT(close != std::string_view::npos, "report page: placeholder without end");
    const std::string_view name = page.substr(open + 2, close - open - 2);
    OSDN_ASSERT(name == "chart_js" || name == "data", "report page: unknown placeholder {}", name);
    html += name == "data" ? std::string_view(data) : chart;
    position = close + 2;
  }
}

}  // namespace osdn::apps
