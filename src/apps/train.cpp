#include "apps/train.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/log.h"
#include "config/yaml.h"
#include "dist/launch.h"
#include "dist/launch_node.h"
#include "tensor/device.h"
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
  dist::LaunchRequest request = options.launch;
  if (!request.processes && config.distributed.processes_per_node)
    request.processes = static_cast<int>(*config.distributed.processes_per_node);
  int num_gpus = -1;  // not asked yet
  const auto count_gpus = [&] {
    return num_gpus = config.run.device == config::Device::kCpu ? 0 : dist::count_gpus();
  };
  const dist::Launch launch = dist::detect_launch(request, dist::process_environment, count_gpus);
  if (launch.idle_gpus > 0)
    log::warning(
        "{} started one process on this node, which uses one of {} visible GPUs; start one a GPU, or give "
        "--processes {}",
        launch.launcher, launch.idle_gpus + 1, launch.idle_gpus + 1);
  if (!launch.node) return train::train(config, launch.process, train_command_line(options));

  if (num_gpus < 0) count_gpus();
  if (num_gpus == 0 && config.run.device == config::Device::kCuda)
    throw EnvironmentError(
        "run.device: expected a visible GPU for cuda, found none ({}); use run.device: cpu or auto",
        no_gpu_reason());
  if (num_gpus > 0 && launch.node->processes > num_gpus)
    throw UserError(
        "{} processes on this node (--processes, distributed.processes_per_node) want a GPU each, {} {} "
        "visible; start at most as many, or use run.device: cpu",
        launch.node->processes, num_gpus, num_gpus == 1 ? "is" : "are");
  return dist::launch_node(
      *launch.node,
      {.arguments = train_command_line(options),
       .run_directory = std::filesystem::absolute(config.run.directory + "/" + config.run.name).string(),
       .timeout_seconds = config.distributed.timeout_seconds,
       .max_restarts = static_cast<int>(config.distributed.max_restarts)});
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
