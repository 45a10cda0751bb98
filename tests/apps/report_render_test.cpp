// The page of `osdn report` in a real browser, where one is installed: its script runs without an error,
// draws, asks the network for nothing and fits a telephone.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/report_data.h"
#include "apps/report_page.h"
#include "base/fs.h"
#include "base/json.h"
#include "tests/apps/synthetic_run.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace report_render_test {

std::string find_browser() {
  for (const char* path : {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"})
    if (std::filesystem::exists(path)) return path;
  return "";
}

/// A page of `width` pixels around the report that writes what it measured into its own title.
std::string measuring_page(int width) {
  return "<!DOCTYPE html><body><iframe id=frame src=report.html style='border:0;width:" +
         std::to_string(width) +
         "px;height:900px'></iframe><script>frame.onload = () => setTimeout(() => {"
         "const page = frame.contentDocument, blank = (canvas) => !canvas.getContext('2d')"
         ".getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value);"
         "const canvases = [...page.querySelectorAll('canvas')];"
         "document.title = JSON.stringify({wider: page.documentElement.scrollWidth - "
         "page.documentElement.clientWidth, charts: canvases.length,"
         "blank: canvases.filter(blank).length, notes: page.querySelectorAll('.notes li').length,"
         "requests: frame.contentWindow.performance.getEntriesByType('resource').length});}, 500);</script>";
}

}  // namespace report_render_test

TEST_CASE("a browser draws every chart of three unequal runs at desk and phone width",
          "[report_render][interop]") {
  const std::string browser = report_render_test::find_browser();
  if (browser.empty()) {
    std::fputs("interop test could not run: no browser (package chromium) is installed\n", stderr);
    return;
  }
  const osdn::TemporaryDirectory directory;
  std::vector<osdn::apps::ReportRun> runs;
  runs.push_back(
      osdn::apps::read_report_run(apps_test::write_run(directory.path(), {.name = "osdn", .gain = 0.2})));
  runs.push_back(osdn::apps::read_report_run(apps_test::write_run(
      directory.path(), {.name = "a-run-whose-name-is-long_and_has_no_place_to_break", .steps = 230})));
  runs.push_back(osdn::apps::read_report_run(
      apps_test::write_run(directory.path(), {.name = "plain", .steps = 310, .has_osdn = false})));
  osdn::atomic_write(directory.path() + "/report.html", osdn::apps::report_page(runs));
  for (const int width : {1280, 360}) {
    CAPTURE(width);
    osdn::atomic_write(directory.path() + "/measure.html", report_render_test::measuring_page(width));
    const auto result = osdn::test::Process({browser, "--headless", "--no-sandbox", "--disable-gpu",
                                             "--user-data-dir=" + directory.path() + "/profile",
                                             "--allow-file-access-from-files", "--window-size=1400,1000",
                                             "--virtual-time-budget=8000", "--enable-logging=stderr",
                                             "--dump-dom", "file://" + directory.path() + "/measure.html"},
                                            directory.path())
                            .wait();
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(result.err.find("Uncaught") == std::string::npos);
    const size_t begin = result.out.find("<title>");
    REQUIRE(begin != std::string::npos);
    const std::string title = result.out.substr(begin + 7, result.out.find("</title>") - begin - 7);
    const osdn::Json measured = osdn::Json::parse(title);
    CHECK(measured["wider"] == 0);
    CHECK(measured["charts"] >= 12);
    CHECK(measured["blank"] == 0);
    CHECK(measured["requests"] == 0);
    CHECK(measured["notes"] == 3);  // the skipped step of each
  }
}
