#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

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
  CHECK(run.skipped_steps == std::vector<int64_t>{7});
  CHECK(run.gaps.empty());
  CHECK(run.damaged_lines.empty());
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
  CHECK(data["runs"][0]["layers"]["q_geo"]["curves"]["y"].back().size() == 4);
  CHECK(data["runs"][0]["layers"]["beta_mean"]["ends"].size() == 4);
  CHECK(data["runs"][0]["skipped"] == osdn::Json::array({7}));
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

TEST_CASE("layers are thinned with the extremes of every layer kept, and close with their last values",
          "[report]") {
  osdn::apps::LayerCurves curves;
  for (int64_t i = 0; i < 5000; ++i) {
    curves.steps.push_back(10 * (i + 1));
    curves.values.push_back({0.5, i == 2345 ? 9.0 : 0.6, i == 3456 ? -1.0 : 0.4});
  }
  curves.values.back()[2] = std::nan("");
  const auto thinned = osdn::apps::thin(curves, 200);
  CHECK(thinned.steps.size() <= 200);
  CHECK(thinned.steps.front() == 10);
  CHECK(thinned.steps.back() == 50000);
  CHECK(std::is_sorted(thinned.steps.begin(), thinned.steps.end()));
  double highest = 0;
  double lowest = 1;
  for (const auto& row : thinned.values) {
    highest = std::max(highest, row[1]);
    lowest = std::min(lowest, row[2]);
  }
  CHECK(highest == 9.0);
  CHECK(lowest == -1.0);
  const auto ends = osdn::apps::tail_means(curves, 5);
  REQUIRE(ends.size() == 3);
  CHECK(ends[0] == Approx(0.5));
  CHECK(ends[2] == Approx(0.4));  // of the four that are numbers
  CHECK(osdn::apps::tail_means({}, 5).empty());
}

TEST_CASE("a torn last line is left out silently; damaged and missing lines are said and the rest is shown",
          "[report]") {
  const osdn::TemporaryDirectory directory;
  const std::string run = apps_test::write_run(directory.path(), {.steps = 60});
  const std::string metrics = run + "/metrics.jsonl";
  std::vector<std::string> lines;
  for (int64_t step = 1; step <= 60; ++step)
    lines.push_back(osdn::metrics::to_json_line(apps_test::synthetic_record({}, step)) + "\n");
  const auto write = [&](const std::string& tail) {
    std::string text;
    for (const std::string& line : lines) text += line;
    osdn::atomic_write(metrics, text + tail);
  };
  write("{\"step\": 61, \"tok");
  CHECK(osdn::apps::read_report_run(metrics).tokens.size() == 60);
  CHECK(osdn::apps::notes_of(osdn::apps::read_report_run(metrics)).size() == 1);  // the skipped step 7

  lines[9] = "{\"step\": 10, \"tok\n";
  lines[19] = std::string("\0\xff\0\n", 4);
  lines[29] = "{\"step\": 3, \"tokens\": 1}\n";
  lines[39].clear();
  lines[40].clear();
  lines[49] = "[]\n";
  write("");
  osdn::create_directories(run + "/tensorboard");
  for (const char* name :
       {"/tensorboard/events.out.tfevents.1.a.1", "/tensorboard/events.out.tfevents.2.a.9"})
    osdn::atomic_write(run + name, "");
  const auto read = osdn::apps::read_report_run(run);
  CHECK(read.tokens.size() == 54);
  CHECK(read.damaged_lines == std::vector<int64_t>{10, 20, 30, 48});
  CHECK(read.gaps ==
        std::vector<std::pair<int64_t, int64_t>>{{10, 10}, {20, 20}, {30, 30}, {40, 41}, {50, 50}});
  const std::vector<std::string> notes = osdn::apps::notes_of(read);
  REQUIRE(notes.size() == 4);
  CHECK(notes[0] == "1 step skipped, loss or gradient not finite: 7");
  CHECK(notes[1] == "4 lines of metrics.jsonl damaged and left out: 10, 20, 30, 48");
  CHECK(notes[2] == "no metrics of 6 steps: 10, 20, 30, 40-41 and 1 more");
  CHECK(notes[3] == "started 2 times");
  CHECK(report_test::data_of(osdn::apps::report_page({read}))["runs"][0]["notes"].size() == 4);

  osdn::atomic_write(metrics, "{\"step\": 1}\n");
  std::string message;
  try {
    osdn::apps::read_report_run(metrics);
  } catch (const osdn::DataError& failure) {
    message = failure.what();
  }
  CHECK(report_test::contains(message, "metrics.jsonl:1: "));
  CHECK(report_test::contains(message, "expected a metrics object"));
}

TEST_CASE("lines that metrics.every_steps leaves out are not missing", "[report]") {
  const osdn::TemporaryDirectory directory;
  const std::string run = apps_test::write_run(directory.path(), {.steps = 40});
  std::string text;
  for (int64_t step = 5; step <= 40; step += 5)
    text += osdn::metrics::to_json_line(apps_test::synthetic_record({}, step)) + "\n";
  osdn::atomic_write(run + "/metrics.jsonl", text);
  std::filesystem::remove(run + "/config.yaml");
  CHECK(osdn::apps::read_report_run(run).gaps.empty());
}

TEST_CASE("machines that differ are told apart beside the configurations", "[report]") {
  const osdn::TemporaryDirectory directory;
  std::vector<osdn::apps::ReportRun> runs;
  for (const char* gpu : {"H200", "A100"}) {
    const std::string run = apps_test::write_run(directory.path() + "/" + gpu, {.steps = 12});
    osdn::atomic_write(run + "/environment.json",
                       osdn::Json({{"gpu", gpu}, {"world_size", 1}, {"host", "a"}}).dump());
    runs.push_back(osdn::apps::read_report_run(run));
  }
  const osdn::Json rows = osdn::apps::configuration_differences(runs);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0]["key"] == "environment: gpu");
  CHECK(rows[0]["values"] == osdn::Json::array({"H200", "A100"}));
}

TEST_CASE("a page of three runs of 100,000 steps stays below two megabytes", "[report][slow]") {
  const osdn::TemporaryDirectory directory;
  std::vector<osdn::apps::ReportRun> runs;
  for (const char* name : {"a", "b", "c"})
    runs.push_back(osdn::apps::read_report_run(
        apps_test::write_run(directory.path(), {.name = name, .steps = 100000, .num_layers = 24})));
  CHECK(osdn::apps::report_page(runs).size() < 2'000'000);
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
