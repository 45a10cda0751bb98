// Which process this is: a rank that a launcher started (torchrun, srun, Open MPI, PyTorchJob, or the
// program's own), or one that starts the ranks of its node itself. Plain C++: nothing here touches LibTorch,
// a GPU or a thread, so a process may still be forked afterwards.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "dist/launch_environment.h"

namespace osdn::dist {

/// Value of an environment variable, or nothing where it is not set or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_environment(const std::string& name);

/// What the command line and the configuration ask for.
struct LaunchRequest {
  std::optional<int> processes;  // on this node (--processes, distributed.processes_per_node); else one a GPU
  std::optional<int> nodes;      // --nodes
  std::optional<int> node_rank;  // --node-rank
  std::optional<std::string> master;  // --master HOST:PORT
};

/// The part of a job that the launcher of one node answers for.
struct Node {
  int nodes = 1;
  int node_rank = 0;        // node 0's launcher serves the meeting place of all
  int processes = 1;        // to start on this node
  std::string master_addr;  // of node 0; empty in a job of one node
  int master_port = 0;      // 0 in a job of one node: any that is free
};

struct Launch {
  std::string launcher;  // who started this process: "torchrun", "srun", "mpirun", "PyTorchJob", "osdn"; or
                         // "none"
  std::optional<Node> node;  // this process starts the ranks of its node; else it is the rank `process`
  LaunchEnvironment process;
  int idle_gpus =
      0;  // that this process sees and leaves, being the only one that a launcher started on its node
};

/// Reads the launchers' variables. The innermost launcher counts: torchrun's variables, then Open MPI's, then
/// SLURM's; a job step of one task is no launch. `count_gpus` is asked only where the number of processes is
/// open, or one for a whole node. Throws UserError naming the variable for a missing, unreadable or
/// contradicting one.
Launch detect_launch(const LaunchRequest& request, const Environment& variable,
                     const std::function<int()>& count_gpus);

/// The first host of SLURM's short form: node07 of "node[07-09,12],login1". Empty for an empty list.
std::string first_host(const std::string& node_list);

/// Tasks on node `index` by SLURM's short form: 2 of "4(x2),2" for index 2. Nothing where it does not say.
std::optional<int> tasks_on_node(const std::string& counts, int index);

/// Set to 1 for the processes that the program's own launcher starts.
inline constexpr const char* kWorkerVariable = "OSDN_WORKER";

/// Of a rank: "log.txt" for rank 0, "log_rank_3.txt" for others; lies in the run's directory.
std::string log_name(int rank);

}  // namespace osdn::dist
