#include "apps/train.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "config/yaml.h"
#include "train/trainer.h"

namespace osdn::apps {

void add_train(CLI::App& root) {
  struct Options {
    std::string config;
    std::vector<std::string> overrides;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("train", "Train a model, or go on with a run that was stopped");
  command->add_option("CONFIG", options->config, "YAML file of the run")->required();
  command->add_option("--set", options->overrides, "Override a key: --set train.steps=100 (repeatable)")
      ->allow_extra_args(false);
  command->footer(
      "Example:\n  osdn train configs/quickstart.yaml --set run.name=try --set train.steps=50\n"
      "Run it again after a stop, a crash or a kill: it resumes from the newest complete checkpoint.");
  command->callback([options] {
    const config::Config config = config::load(options->config, options->overrides);
    std::vector<std::string> command_line = {"osdn", "train", options->config};
    for (const std::string& override : options->overrides)
      command_line.insert(command_line.end(), {"--set", override});
    const ExitCode code = train::train(config, command_line);
    // A stop asked for by a signal is no error, yet launchers must see that the run is not done.
    if (code != ExitCode::kDone) throw CLI::RuntimeError(static_cast<int>(code));
  });
}

}  // namespace osdn::apps
