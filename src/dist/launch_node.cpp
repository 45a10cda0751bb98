#include "dist/launch_node.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/log.h"
#include "dist/supervisor.h"
#include "tensor/device.h"

namespace osdn::dist {
namespace launch_node_detail {

std::string own_program() {
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", failure);
  // A program that was replaced while it runs is still there under the other name.
  return failure || !std::filesystem::exists(path) ? "/proc/self/exe" : path.string();
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

/// This process' environment with what a rank is told, by the names that torchrun uses.
std::vector<std::string> environment_of(const Node& node, const Meeting& meeting, int local_rank) {
  std::map<std::string, std::string> values;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) values[text.substr(0, equals)] = text.substr(equals + 1);
  }
  values["RANK"] = std::to_string(meeting.first_rank + local_rank);
  values["WORLD_SIZE"] = std::to_string(meeting.world_size);
  values["LOCAL_RANK"] = std::to_string(local_rank);
  values["LOCAL_WORLD_SIZE"] = std::to_string(node.processes);
  values["MASTER_ADDR"] = meeting.master_addr;
  values["MASTER_PORT"] = std::to_string(meeting.master_port);
  values["TORCHELASTIC_RESTART_COUNT"] = std::to_string(meeting.attempt);
  values["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  values[kWorkerVariable] = "1";
  std::vector<std::string> result;
  result.reserve(values.size());
  for (const auto& [name, value] : values) result.push_back(name + "=" + value);
  return result;
}

}  // namespace launch_node_detail

ExitCode launch_node(const Node& node, const LaunchedJob& job) {
  namespace detail = launch_node_detail;
  const BlockedSignals signals;
  const std::unique_ptr<Peers> peers = make_peers(node, static_cast<double>(job.timeout_seconds));
  const SupervisorOptions options = {.max_restarts = job.max_restarts,
                                     .follow = std::chrono::milliseconds(1000 * job.timeout_seconds),
                                     .where = node.nodes > 1 ? " on " + detail::host_name() : "",
                                     .log_file = job.run_directory + "/log.txt"};
  return supervise(*peers, signals, options, [&](const Meeting& meeting) {
    log::info("starting rank{} {} to {} of {}", node.processes == 1 ? "" : "s", meeting.first_rank,
              meeting.first_rank + node.processes - 1, meeting.world_size);
    std::vector<Worker> workers;
    for (int local_rank = 0; local_rank < node.processes; ++local_rank) {
      const int rank = meeting.first_rank + local_rank;
      std::vector<std::string> arguments = job.arguments;
      arguments.front() = detail::own_program();
      workers.push_back({.rank = rank,
                         .arguments = std::move(arguments),
                         .environment = detail::environment_of(node, meeting, local_rank),
                         .on_terminal = rank == 0,
                         .log_file = job.run_directory + "/" + log_name(rank)});
    }
    return workers;
  });
}

int count_gpus() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(static_cast<int>(std::clamp<int64_t>(num_gpus(), 0, 200)));
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 0;
  return WEXITSTATUS(status);
}

}  // namespace osdn::dist
