#include <algorithm>
#include <cmath>
#include <string>

#include "apps/report_data.h"
#include "apps/report_page.h"
#include "apps/report_summary.h"
#include "base/error.h"
#include "tests/apps/synthetic_run.h"
#include "tests/support/catch.h"

namespace report_test {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The data that the page carries, read back out of its script element.
osdn::Json data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return osdn::Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

}  // namespace report_test

TEST_CASE("a run's curves, layers and closing values are those of its metrics", "[report]") {
  const osdn::TemporaryDirectory directory;
  const auto run = osdn::apps::read_report_run(apps_test::write_run(directory.path(), {}) + "/");
  CHECK(run.name == "osdn");
  CHECK(run.num_skipped == 1);
  REQUIRE(run.config.has_value());
  CHECK(run.curves.at("loss").values.size() == 400);
  CHECK(run.curves.at("loss").values[9] == apps_test::synthetic_record({}, 10).loss);
  CHECK(run.curves.at("validation_loss").steps == std::vector<int64_t>{100, 200, 300, 400});
  CHECK(run.curves.at("q_geo").steps.size() == 40);
  CHECK(run.curves.count("retention_mean") == 0);  // null in every line
  CHECK(run.layers.at("q_geo").values.back().size() == 4);
  CHECK(run.tokens.back() == std::pair<int64_t, int64_t>{400, 400 * 4096});
  CHECK(osdn::apps::read_report_run(directory.path() + "/osdn/metrics.jsonl").name == "osdn");
}

TEST_CASE("the page is self-contained and carries the data of every run", "[report]") {
  const osdn::TemporaryDirectory directory;
  std::vector<osdn::apps::ReportRun> runs;
  runs.push_back(
      osdn::apps::read_report_run(apps_test::write_run(directory.path(), {.name = "osdn", .gain = 0.1})));
  runs.push_back(osdn::apps::read_report_run(
      apps_test::write_run(directory.path(), {.name = "plain <!-- <script>", .has_osdn = false})));
  const std::string page = osdn::apps::report_page(runs);
  for (const char* request : {"src=\"", "href=\"", "@import", "url(", "fetch(", "XMLHttpRequest"})
    CHECK_FALSE(report_test::contains(page, request));
  CHECK(report_test::contains(page, "Chart.js v"));
  CHECK_FALSE(report_test::contains(page, "{{"));
  const osdn::Json data = report_test::data_of(page);
  REQUIRE(data["runs"].size() == 2);
  CHECK(data["runs"][1]["name"] == "plain <!-- <script>");
  CHECK(data["runs"][0]["curves"]["loss_smooth"]["x"].size() == 400);
  CHECK(data["runs"][0]["layers"]["q_geo"]["y"].back().size() == 4);
  bool found_osdn = false;
  for (const osdn::Json& row : data["differences"]) {
    CHECK(row["key"] != "run.name");
    found_osdn = found_osdn || report_test::contains(row["key"].get<std::string>(), "model.osdn");
  }
  CHECK(found_osdn);
  for (const osdn::Json& row : data["closing"])
    if (row["key"] == "q_geo") CHECK(row["best"] == 0);
  const std::string table = osdn::apps::report_table(runs);
  CHECK(report_test::contains(table, "Validation loss"));
  CHECK(report_test::contains(table, "plain <!-- <script>"));
}

TEST_CASE("a long run is thinned with its spikes, ends and extremes kept", "[report]") {
  osdn::apps::Curve curve;
  for (int64_t i = 0; i < 100000; ++i) {
    curve.steps.push_back(i + 1);
    curve.values.push_back(i == 54321 ? 1000.0 : std::sin(static_cast<double>(i)));
  }
  const auto thinned = osdn::apps::thin(curve, 2000);
  CHECK(thinned.values.size() <= 2000);
  CHECK(thinned.values.size() > 1500);
  CHECK(thinned.steps.front() == 1);
  CHECK(thinned.steps.back() == 100000);
  CHECK(std::is_sorted(thinned.steps.begin(), thinned.steps.end()));
  CHECK(std::count(thinned.values.begin(), thinned.values.end(), 1000.0) == 1);
  CHECK(osdn::apps::thin(thinned, 2000).steps == thinned.steps);
}

TEST_CASE("smoothing keeps a constant and is the mean of both directions", "[report]") {
  const osdn::apps::Curve flat = {{1, 2, 3}, {4.0, 4.0, 4.0}};
  for (const double value : osdn::apps::smooth(flat, 2).values) CHECK(value == Approx(4.0));
  // With weights 1, 1/2, 1/4 the mean over the past is 0, 2/3, 6/7, that over the future 3/7, 1, 1.
  const osdn::apps::Curve ramp = {{1, 2, 3}, {0.0, 1.0, 1.0}};
  const auto smoothed = osdn::apps::smooth(ramp, 1);
  CHECK(smoothed.values[0] == Approx((0.0 + 3.0 / 7) / 2));
  CHECK(smoothed.values[1] == Approx((2.0 / 3 + 1.0) / 2));
  CHECK(smoothed.values[2] == Approx((6.0 / 7 + 1.0) / 2));
  CHECK(osdn::apps::tail_mean({{1, 2, 3}, {1, 2, 6}}, 2) == 4);
  CHECK(osdn::apps::median({{1, 2, 3}, {9, 1, 5}}) == 5);
  CHECK(std::isnan(osdn::apps::median({})));
}

TEST_CASE("a torn last line is left out, a broken one before it is named", "[report]") {
  const osdn::TemporaryDirectory directory;
  const std::string metrics = apps_test::write_run(directory.path(), {.steps = 20}) + "/metrics.jsonl";
  const std::string whole = osdn::read_file(metrics);
  osdn::atomic_write(metrics, whole + "{\"step\": 21, \"tok");
  CHECK(osdn::apps::read_report_run(metrics).tokens.size() == 20);
  osdn::atomic_write(metrics, "{\"step\": 1}\n" + whole);
  std::string message;
  try {
    osdn::apps::read_report_run(metrics);
  } catch (const osdn::DataError& failure) {
    message = failure.what();
  }
  CHECK(report_test::contains(message, "metrics.jsonl:1: expected a metrics object"));
}

TEST_CASE("what is no run is refused with what was expected", "[report]") {
  const osdn::TemporaryDirectory directory;
  CHECK_THROWS_AS(osdn::apps::read_report_run(directory.path()), osdn::UserError);
  CHECK_THROWS_AS(osdn::apps::read_report_run(directory.path() + "/absent"), osdn::UserError);
  osdn::atomic_write(directory.path() + "/metrics.jsonl", "");
  CHECK_THROWS_AS(osdn::apps::read_report_run(directory.path()), osdn::UserError);
}

TEST_CASE("two runs of one name are told apart by their directories", "[report]") {
  const osdn::TemporaryDirectory directory;
  std::vector<osdn::apps::ReportRun> runs;
  for (const char* parent : {"/a", "/b"})
    runs.push_back(
        osdn::apps::read_report_run(apps_test::write_run(directory.path() + parent, {.steps = 12})));
  const auto names = osdn::apps::display_names(runs);
  CHECK(names[0] == directory.path() + "/a/osdn");
  CHECK(names[1] == directory.path() + "/b/osdn");
  CHECK(osdn::apps::configuration_differences(runs).empty());
}
