#include "apps/inspect.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/inspect_findings.h"
#include "base/error.h"
#include "base/fs.h"
#include "checkpoint/layout.h"

namespace osdn::apps {
namespace inspect_detail {

std::string with_blanks(std::string key) {
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

/// 1234567 as 1,234,567; strings without quotes.
std::string shown(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  std::string text = value.dump();
  if (!value.is_number_integer()) return text;
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > (text[0] == '-' ? 1 : 0); at -= 3)
    text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string as_text(const Finding& finding) {
  std::string text = fmt::format("{}: {}\n", finding.path, finding.kind);
  for (const auto& [key, value] : finding.facts.items()) {
    if (!value.is_object()) {
      text += fmt::format("  {:<20} {}\n", with_blanks(key), shown(value));
      continue;
    }
    for (const auto& [name, entry] : value.items()) text += fmt::format("  {} {}\n", name, shown(entry));
  }
  for (const std::string& remark : finding.remarks) text += fmt::format("  note: {}\n", remark);
  for (const std::string& problem : finding.problems) text += fmt::format("  DAMAGED: {}\n", problem);
  if (finding.intact()) text += "  intact\n";
  return text;
}

Json as_json(const std::vector<Finding>& findings, bool intact) {
  Json list = Json::array();
  for (const Finding& finding : findings)
    list.push_back({{"path", finding.path},
                    {"kind", finding.kind},
                    {"intact", finding.intact()},
                    {"facts", finding.facts},
                    {"remarks", finding.remarks},
                    {"problems", finding.problems}});
  return Json::object({{"intact", intact}, {"findings", std::move(list)}});
}

struct Options {
  std::vector<std::string> paths;
  bool json = false;
};

void run(const Options& options) {
  std::vector<Finding> findings;
  for (const std::string& path : options.paths) {
    const size_t first = findings.size();
    inspect_path(path, &findings);
    if (options.json) continue;
    for (size_t i = first; i < findings.size(); ++i) std::fputs(as_text(findings[i]).c_str(), stdout);
  }
  std::vector<std::string> problems;
  for (const Finding& finding : findings)
    problems.insert(problems.end(), finding.problems.begin(), finding.problems.end());
  if (options.json)
    std::fputs((json_text(as_json(findings, problems.empty()), 2) + "\n").c_str(), stdout);
  else
    fmt::print("verdict: {}\n", problems.empty() ? "intact" : "DAMAGED");
  std::fflush(stdout);
  if (!problems.empty())
    throw DataError(
        "{}: {}",
        problems.size() == 1 ? "damaged" : fmt::format("{} things are damaged, first", problems.size()),
        problems.front());
}

}  // namespace inspect_detail

void inspect_path(const std::string& given, std::vector<Finding>* findings) {
  namespace fs = std::filesystem;
  const std::string path = fs::path(given).lexically_normal().string();
  if (fs::is_regular_file(path)) {
    const std::string extension = fs::path(path).extension().string();
    if (extension == ".h5" || extension == ".hdf5") return inspect_shard(path, findings);
    if (extension == ".safetensors") return inspect_safetensors(path, findings);
    if (extension == ".model") return inspect_tokenizer(path, findings);
    throw UserError(
        "{}: expected a shard (.h5), a .safetensors file, a tokenizer (.model), or a directory: a "
        "checkpoint, a run, "
        "a folder of shards, an exported model",
        given);
  }
  if (!fs::is_directory(path)) throw UserError("{}: no such file or directory", given);
  const bool named = checkpoint::parse_step_name(checkpoint::base_name(path)).has_value();
  if (named || fs::exists(path + "/" + checkpoint::kManifestFile)) return inspect_checkpoint(path, findings);
  if (fs::exists(path + "/metrics.jsonl") || fs::is_directory(path + "/checkpoints"))
    return inspect_run(path, findings);
  if (!checkpoint::list_steps(path).empty()) return inspect_checkpoints(path, findings);
  if (fs::exists(path + "/config.json") && !glob_paths(path + "/*.safetensors").empty())
    return inspect_model_directory(path, findings);
  if (glob_paths(path + "/*.h5").empty())
    throw UserError(
        "{}: neither a run (metrics.jsonl, checkpoints), a checkpoint (manifest.json), an exported model "
        "(config.json, "
        "*.safetensors) nor a folder of shards (*.h5)",
        given);
  inspect_shard_folder(path, findings);
}

void add_inspect(CLI::App& root) {
  const auto options = std::make_shared<inspect_detail::Options>();
  CLI::App* command = root.add_subcommand(
      "inspect", "Say what a shard, checkpoint, run or exported model is, and whether it is intact");
  command
      ->add_option("PATH", options->paths,
                   "Shards (.h5), folders of them, tokenizers, checkpoints, runs, exported models")
      ->required();
  command->add_flag("--json", options->json, "One JSON object instead of text");
  command->footer(
      "Example:\n  osdn inspect runs/quickstart-osdn\n"
      "Reads every byte: digests, token ids against the vocabulary, shapes against the configuration, NaN in "
      "weights.\nExit code 4 when something is damaged.");
  command->callback([options] { inspect_detail::run(*options); });
}

}  // namespace osdn::apps
