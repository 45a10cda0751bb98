#include "apps/launch_ranks.h"

#include "base/log.h"
#include "dist/launch_node.h"
#include "tensor/device.h"

namespace osdn::apps {

ExitCode run_ranks(const config::Config& config, dist::LaunchRequest request, const RankedCommand& command,
                   const std::function<ExitCode(const dist::LaunchEnvironment&)>& body) {
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
  if (!launch.node) return body(launch.process);

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
  return dist::launch_node(*launch.node, {.arguments = command.words,
                                          .run_directory = command.directory,
                                          .timeout_seconds = config.distributed.timeout_seconds,
                                          .max_restarts = command.max_restarts});
}

}  // namespace osdn::apps
