#include "apps/train.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "apps/launch_ranks.h"
#include "config/yaml.h"
#include "train/trainer.h"

namespace osdn::apps {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  dist::LaunchRequest launch;
};

std::vector<std::string> train_command_line(const TrainOptions& options) {
  std::vector<std::string> words = {"osdn", "train", options.config};
  for (const std::string& override : options.overrides) words.insert(words.end(), {"--set", override});
  return words;
}

ExitCode train_or_launch(const TrainOptions& options) {
  const config::Config config = config::load(options.config, options.overrides);
  const RankedCommand command = {
      .words = train_command_line(options),
      .directory = std::filesystem::absolute(config.run.directory + "/" + config.run.name).string(),
      .max_restarts = static_cast<int>(config.distributed.max_restarts)};
  return run_ranks(config, options.launch, command, [&](const dist::LaunchEnvironment& launched) {
    return train::train(config, launched, command.words);
  });
}

}  // namespace

void add_train(CLI::App& root) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* command = root.add_subcommand("train", "Train a model, or go on with a run that was stopped");
  command->add_option("CONFIG", options->config, "YAML file of the run")->required();
  command->add_option("--set", options->overrides, "Override a key: --set train.steps=100 (repeatable)")
      ->allow_extra_args(false);
  command
      ->add_option("--processes", options->launch.processes,
                   "Processes to start on this node; without it distributed.processes_per_node, or one a GPU")
      ->check(CLI::Range(1, 1024));
  command->add_option("--nodes", options->launch.nodes,
                      "Nodes of the job, where no launcher starts it on each");
  command->add_option("--node-rank", options->launch.node_rank, "Which of them this is, from 0");
  command->add_option("--master", options->launch.master, "HOST:PORT of node 0, where the nodes meet");
  command->footer(
      "Example:\n  osdn train configs/quickstart.yaml --set run.name=try --set train.steps=50\n"
      "Run it again after a stop, a crash or a kill: it resumes from the newest complete checkpoint. Ranks "
      "that\n"
      "torchrun, srun, mpirun or a PyTorchJob start are recognised by their variables.");
  command->callback([options] {
    const ExitCode code = train_or_launch(*options);
    // A stop asked for by a signal is no error, yet launchers must see that the run is not done.
    if (code != ExitCode::kDone) throw CLI::RuntimeError(static_cast<int>(code));
  });
}

}  // namespace osdn::apps
