#include "apps/report.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/report_data.h"
#include "apps/report_page.h"
#include "apps/report_summary.h"
#include "base/fs.h"
#include "base/log.h"

namespace osdn::apps {

void add_report(CLI::App& root) {
  struct Options {
    std::vector<std::string> runs;
    std::string output;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      root.add_subcommand("report", "Write one self-contained HTML page about one or more runs");
  command
      ->add_option("RUN", options->runs, "Run directories (or metrics.jsonl files), overlaid in this order")
      ->required();
  command->add_option("--output", options->output,
                      "The page; default: report.html in the run's directory, of several runs here");
  command->footer(
      "Example:\n  osdn report runs/quickstart-osdn runs/quickstart-plain --output report.html\n"
      "The page opens offline. The closing values also go to stdout.");
  command->callback([options] {
    std::vector<ReportRun> runs;
    for (const std::string& path : options->runs) runs.push_back(read_report_run(path));
    std::string output = options->output;
    if (output.empty()) output = runs.size() == 1 ? runs[0].directory + "/report.html" : "report.html";
    atomic_write(output, report_page(runs));
    std::fputs(report_table(runs).c_str(), stdout);
    log::info("{}: written", output);
  });
}

}  // namespace osdn::apps
