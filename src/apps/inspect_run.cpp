#include <fmt/format.h>

#include <filesystem>

#include "apps/inspect_findings.h"
#include "apps/report_data.h"
#include "base/error.h"
#include "base/fs.h"
#include "config/yaml.h"

namespace osdn::apps {
namespace inspect_run_detail {

namespace fs = std::filesystem;

void read_configuration(const std::string& path, Finding* finding) {
  if (!fs::exists(path)) {
    finding->remarks.emplace_back("no config.yaml: the run ended before its first step");
    return;
  }
  try {
    const config::Config config = config::load(path, {});
    finding->facts["name"] = config.run.name;
    finding->facts["steps_wanted"] = config.train.steps;
  } catch (const UserError& failure) {
    finding->problems.emplace_back(failure.what());
  }
}

void read_metrics(const std::string& run, Finding* finding) {
  const std::string path = run + "/metrics.jsonl";
  if (!fs::exists(path) || fs::file_size(path) == 0) {
    finding->remarks.emplace_back("no metrics yet");
    return;
  }
  try {
    const ReportRun read = read_report_run(run);
    finding->facts["metrics_lines"] = read.tokens.size();
    finding->facts["last_step"] = read.tokens.back().first;
    finding->facts["tokens"] = read.tokens.back().second;
    for (const std::string& note : notes_of(read)) finding->remarks.push_back(note);
    if (!read.damaged_lines.empty())
      finding->problems.push_back(fmt::format("{}:{}: damaged, with {} other lines", path,
                                              read.damaged_lines.front(), read.damaged_lines.size() - 1));
  } catch (const DataError& failure) {
    finding->problems.emplace_back(failure.what());
  } catch (const UserError& nothing) {
    finding->remarks.emplace_back("no finished step yet");
  }
}

}  // namespace inspect_run_detail

void inspect_run(const std::string& path, std::vector<Finding>* findings) {
  Finding finding = {.path = path, .kind = "run"};
  inspect_run_detail::read_configuration(path + "/config.yaml", &finding);
  inspect_run_detail::read_metrics(path, &finding);
  if (const std::string environment = path + "/environment.json"; std::filesystem::exists(environment)) {
    try {
      const Json read = read_json(environment);
      for (const char* field : {"commit", "device", "gpu", "world_size"})
        if (read.contains(field)) finding.facts[field] = read[field];
    } catch (const DataError& failure) {
      finding.problems.emplace_back(failure.what());
    }
  }
  findings->push_back(std::move(finding));
  if (std::filesystem::is_directory(path + "/checkpoints"))
    inspect_checkpoints(path + "/checkpoints", findings);
}

}  // namespace osdn::apps
