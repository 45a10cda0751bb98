#include "dist/launch.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace osdn::dist {
namespace launch_detail {

// Ports that are made from a job's id: above the well-known ones, below those that Linux gives to clients.
constexpr int kFirstPort = 15000;
constexpr int kNumPorts = 16000;

std::optional<int> whole_number(const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc() || stop != end || value < 0) return std::nullopt;
  return value;
}

/// The variables of one launcher, read with messages.
class Reader {
 public:
  Reader(const Environment& variable, std::string launcher)
      : variable_(variable), launcher_(std::move(launcher)) {}

  std::optional<int> maybe(const std::string& name) const {
    const std::optional<std::string> text = variable_(name);
    if (!text) return std::nullopt;
    const std::optional<int> value = whole_number(*text);
    if (!value)
      throw UserError("environment variable {}: expected a whole number from 0, got \"{}\"", name, *text);
    return value;
  }

  int number(const std::string& name, const std::string& beside) const {
    const std::optional<int> value = maybe(name);
    if (!value)
      throw UserError(
          "environment variable {}: expected a number from {} beside {}, found none; set it, or unset {}",
          name, launcher_, beside, beside);
    return *value;
  }

  std::string text(const std::string& name, const std::string& meaning) const {
    const std::optional<std::string> value = variable_(name);
    if (!value)
      throw UserError("environment variable {}: expected {} ({} starts several processes), found none", name,
                      meaning, launcher_);
    return *value;
  }

  int port(const std::string& name) const {
    const int value = whole_number(text(name, "the port of rank 0's host")).value_or(0);
    if (value < 1 || value > 65535)
      throw UserError("environment variable {}: expected a port from 1 to 65535, got \"{}\"", name,
                      *variable_(name));
    return value;
  }

  bool has(const std::string& name) const { return variable_(name).has_value(); }
  const std::string& launcher() const { return launcher_; }

 private:
  const Environment& variable_;
  std::string launcher_;
};

void check_rank(const LaunchEnvironment& found, const std::string& rank_name, const std::string& size_name) {
  if (found.world_size < 1 || found.rank >= found.world_size)
    throw UserError("environment variables {} and {}: expected a rank below the world size, got {} and {}",
                    rank_name, size_name, found.rank, found.world_size);
}

void check_local(const LaunchEnvironment& found, const std::string& rank_name, const std::string& size_name) {
  if (found.local_world_size < 1 || found.local_rank >= found.local_world_size)
    throw UserError(
        "environment variables {} and {}: expected a local rank below the number of processes on the node, "
        "got {} and {}",
        rank_name, size_name, found.local_rank, found.local_world_size);
  if (found.local_world_size > found.world_size)
    throw UserError("environment variable {}: expected at most the world size, {}, got {}", size_name,
                    found.world_size, found.local_world_size);
}

int port_of(const std::string& job) {
  return kFirstPort + static_cast<int>(hash64(job, 0) % static_cast<uint64_t>(kNumPorts));
}

/// MASTER_ADDR and MASTER_PORT where they are set, else what the launcher's own variables give.
void set_master(LaunchEnvironment& found, const Reader& reader, const std::string& own_address,
                const std::string& job, const std::string& how_to_set) {
  if (found.world_size == 1) return;
  if (!reader.has("MASTER_ADDR") && own_address.empty())
    throw UserError("environment variable MASTER_ADDR: expected the host of rank 0, found none; {}",
                    how_to_set);
  found.master_addr = reader.has("MASTER_ADDR") ? reader.text("MASTER_ADDR", "") : own_address;
  found.master_port = reader.has("MASTER_PORT") ? reader.port("MASTER_PORT") : port_of(job);
}

using Found = std::optional<Launch>;

/// A pod of Kubernetes that the job's operator leaves all processes of the node to: PET_* tell where it
/// stands, and MASTER_* too, or PET_MASTER_* alone.
Node node_of_pod(const Reader& reader, const Environment& variable, const std::string& per_node) {
  Node node;
  const bool has_rank = reader.has("RANK") && reader.has("WORLD_SIZE");
  const std::optional<int> nodes = reader.maybe("PET_NNODES");
  const std::optional<int> rank = reader.maybe("PET_NODE_RANK");
  node.nodes =
      nodes || !has_rank ? reader.number("PET_NNODES", "PET_NPROC_PER_NODE") : *reader.maybe("WORLD_SIZE");
  node.node_rank = rank || !has_rank ? reader.number("PET_NODE_RANK", "PET_NNODES") : *reader.maybe("RANK");
  node.processes = whole_number(per_node).value_or(0);  // auto, gpu
  if (node.nodes < 1 || node.node_rank >= node.nodes)
    throw UserError(
        "environment variables PET_NODE_RANK and PET_NNODES: expected a node rank below the number of nodes, "
        "got "
        "{} and {}",
        node.node_rank, node.nodes);
  const int world_size = has_rank ? *reader.maybe("WORLD_SIZE") : 0;
  if (has_rank && node.processes > 0 && world_size != node.nodes * node.processes && world_size != node.nodes)
    throw UserError(
        "environment variable WORLD_SIZE: expected {} (PET_NNODES {} x PET_NPROC_PER_NODE {}), got {}",
        node.nodes * node.processes, node.nodes, node.processes, world_size);
  if (node.nodes > 1) {
    const std::string prefix = variable("MASTER_ADDR") ? "" : "PET_";
    node.master_addr = reader.text(prefix + "MASTER_ADDR", "the host of rank 0");
    node.master_port = reader.port(prefix + "MASTER_PORT");
  }
  return node;
}

/// RANK and WORLD_SIZE: torchrun, a PyTorchJob, or the program's own launcher.
Found from_torch(const Environment& variable) {
  const bool has_rank = variable("RANK") || variable("WORLD_SIZE");
  const bool elastic = variable("TORCHELASTIC_RUN_ID") || variable("LOCAL_RANK");
  const std::string per_node = variable("PET_NPROC_PER_NODE").value_or("1");
  const bool pod = !elastic && (per_node != "1" || (!has_rank && variable("PET_NNODES")));
  if (!has_rank && !pod) return std::nullopt;
  Launch launch;
  launch.launcher = variable(kWorkerVariable) ? "osdn" : elastic ? "torchrun" : "PyTorchJob";
  const Reader reader(variable, launch.launcher);
  if (pod) {
    launch.node = node_of_pod(reader, variable, per_node);
    return launch;
  }
  LaunchEnvironment& found = launch.process;
  found.rank = reader.number("RANK", "WORLD_SIZE");
  found.world_size = reader.number("WORLD_SIZE", "RANK");
  check_rank(found, "RANK", "WORLD_SIZE");
  found.local_rank = reader.maybe("LOCAL_RANK").value_or(0);
  found.local_world_size = reader.maybe("LOCAL_WORLD_SIZE").value_or(found.local_rank + 1);
  check_local(found, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  if (found.world_size > 1) {
    found.master_addr = reader.text("MASTER_ADDR", "the host of rank 0");
    found.master_port = reader.port("MASTER_PORT");
  }
  found.restart_count = reader.maybe("TORCHELASTIC_RESTART_COUNT").value_or(0);
  found.launcher_serves = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return launch;
}

Found from_open_mpi(const Environment& variable) {
  if (!variable("OMPI_COMM_WORLD_RANK") && !variable("OMPI_COMM_WORLD_SIZE")) return std::nullopt;
  const Reader reader(variable, "mpirun");
  Launch launch;
  launch.launcher = "mpirun";
  LaunchEnvironment& found = launch.process;
  found.rank = reader.number("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  found.world_size = reader.number("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  check_rank(found, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  found.local_rank = reader.number("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK");
  found.local_world_size = reader.number("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK");
  check_local(found, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  const bool one_node = found.local_world_size == found.world_size;
  const std::string job =
      variable("PMIX_NAMESPACE").value_or(variable("OMPI_MCA_ess_base_jobid").value_or(""));
  set_master(found, reader, one_node ? "127.0.0.1" : "", job,
             "give it to every rank: mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500");
  return launch;
}

/// A job step of several tasks. The batch script itself, and a step of one task (an interactive shell), are
/// places where the program starts its own processes.
Found from_slurm(const Environment& variable) {
  if (!variable("SLURM_PROCID") || !variable("SLURM_STEP_ID")) return std::nullopt;
  const Reader reader(variable, "srun");
  const bool has_step = variable("SLURM_STEP_NUM_TASKS").has_value();
  const std::string size_name = has_step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  Launch launch;
  launch.launcher = "srun";
  LaunchEnvironment& found = launch.process;
  found.rank = reader.number("SLURM_PROCID", "SLURM_STEP_ID");
  found.world_size = reader.number(size_name, "SLURM_PROCID");
  if (found.world_size == 1) return std::nullopt;
  check_rank(found, "SLURM_PROCID", size_name);
  found.local_rank = reader.number("SLURM_LOCALID", "SLURM_PROCID");
  const int node = reader.maybe("SLURM_NODEID").value_or(0);
  const std::string counts_name =
      variable("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  found.local_world_size =
      tasks_on_node(variable(counts_name).value_or(""), node).value_or(found.local_rank + 1);
  check_local(found, "SLURM_LOCALID", counts_name);
  const std::string hosts = variable("SLURM_STEP_NODELIST").value_or(variable("SLURM_NODELIST").value_or(""));
  const bool one_node = found.local_world_size == found.world_size;
  const std::string job = variable("SLURM_JOB_ID").value_or("") + "." + *variable("SLURM_STEP_ID");
  set_master(found, reader, one_node ? "127.0.0.1" : first_host(hosts), job,
             "SLURM_STEP_NODELIST does not say it either; export it before srun");
  return launch;
}

/// Several launchers' variables may be there: torchrun or mpirun in a job step is right, RANK=0 that a batch
/// file exports to every task of a step is not.
void refuse_contradiction(const Launch& inner, const Found& outer) {
  if (!outer || inner.launcher != "PyTorchJob" || inner.node) return;
  const LaunchEnvironment& a = inner.process;
  const LaunchEnvironment& b = outer->process;
  if (a.rank == b.rank && a.world_size == b.world_size) return;
  throw UserError(
      "environment variables of two launchers contradict each other: rank {} of {} by RANK and WORLD_SIZE, "
      "rank {} of {} "
      "by {}; unset those that are not meant (RANK, WORLD_SIZE, or start without {})",
      a.rank, a.world_size, b.rank, b.world_size, outer->launcher, outer->launcher);
}

Node node_of_request(const LaunchRequest& request) {
  Node node;
  node.nodes = request.nodes.value_or(1);
  node.node_rank = request.node_rank.value_or(0);
  if (node.nodes < 1) throw UserError("--nodes: expected a number from 1, got {}", node.nodes);
  if (node.node_rank < 0 || node.node_rank >= node.nodes)
    throw UserError("--node-rank: expected a number from 0 to {} (--nodes {}), got {}", node.nodes - 1,
                    node.nodes, node.node_rank);
  if (node.nodes > 1 && (!request.node_rank || !request.master))
    throw UserError(
        "--nodes {}: expected {} beside it, the same job on every node", node.nodes,
        request.node_rank ? "--master HOST:PORT of node 0" : "--node-rank of this node, 0 to nodes - 1");
  if (!request.master) return node;
  const size_t colon = request.master->rfind(':');
  const std::optional<int> port =
      colon == std::string::npos ? std::nullopt : whole_number(request.master->substr(colon + 1));
  if (colon == 0 || !port || *port < 1 || *port > 65535)
    throw UserError("--master: expected HOST:PORT of node 0, such as node-0:29500, got \"{}\"",
                    *request.master);
  node.master_addr = request.master->substr(0, colon);
  if (node.master_addr.size() > 2 && node.master_addr.front() == '[' && node.master_addr.back() == ']')
    node.master_addr = node.master_addr.substr(1, node.master_addr.size() - 2);  // [2001:db8::1]:29500
  node.master_port = *port;
  return node;
}

/// One task a node, several processes wanted on each: each task is the launcher of its node.
void apply_request(Launch& launch, const LaunchRequest& request) {
  if (launch.launcher == "osdn") return;  // its workers get the launcher's own arguments
  if (request.nodes || request.node_rank || request.master)
    throw UserError(
        "--nodes, --node-rank and --master are for a start without launcher, but {} started this process "
        "(rank {} "
        "of {}); leave them out",
        launch.launcher, launch.process.rank, launch.process.world_size);
  if (launch.node) {
    if (request.processes) launch.node->processes = *request.processes;
    return;
  }
  LaunchEnvironment& process = launch.process;
  if (!request.processes || *request.processes == process.local_world_size) return;
  if (process.local_world_size != 1)
    throw UserError(
        "--processes (distributed.processes_per_node): {} started {} processes on this node, {} are asked "
        "for; "
        "change one of the two",
        launch.launcher, process.local_world_size, *request.processes);
  launch.node = Node{.nodes = process.world_size,
                     .node_rank = process.rank,
                     .processes = *request.processes,
                     .master_addr = process.master_addr,
                     .master_port = process.master_port};
}

}  // namespace launch_detail

std::optional<std::string> process_environment(const std::string& name) {
  const char* text = std::getenv(name.c_str());
  if (!text || !*text) return std::nullopt;
  return text;
}

std::string first_host(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t close = std::min(node_list.find(']', i), node_list.size());
    const size_t stop = std::min(node_list.find_first_of("-,]", i), close);
    host += node_list.substr(i + 1, stop - i - 1);
    i = close;
  }
  return host;
}

std::optional<int> tasks_on_node(const std::string& counts, int index) {
  size_t begin = 0;
  while (begin < counts.size()) {
    const size_t end = std::min(counts.find(',', begin), counts.size());
    const std::string entry = counts.substr(begin, end - begin);
    const size_t times = entry.find("(x");
    const std::optional<int> tasks = launch_detail::whole_number(entry.substr(0, times));
    const std::optional<int> repeated =
        times == std::string::npos
            ? 1
            : launch_detail::whole_number(entry.substr(times + 2, entry.size() - times - 3));
    if (!tasks || !repeated) return std::nullopt;
    if (index < *repeated) return tasks;
    index -= *repeated;
    begin = end + 1;
  }
  return std::nullopt;
}

std::string log_name(int rank) { return rank == 0 ? "log.txt" : fmt::format("log_rank_{}.txt", rank); }

Launch detect_launch(const LaunchRequest& request, const Environment& variable,
                     const std::function<int()>& count_gpus) {
  namespace detail = launch_detail;
  const detail::Found found[] = {detail::from_torch(variable), detail::from_open_mpi(variable),
                                 detail::from_slurm(variable)};
  std::optional<Launch> launch;
  for (const detail::Found& one : found) {
    if (launch)
      detail::refuse_contradiction(*launch, one);
    else
      launch = one;
  }
  if (launch) {
    detail::apply_request(*launch, request);
  } else {
    launch.emplace();
    launch->launcher = "none";
    launch->node = detail::node_of_request(request);
    launch->node->processes = request.processes.value_or(0);
  }
  const LaunchEnvironment& process = launch->process;
  if (!launch->node && process.world_size > 1 && process.local_world_size == 1 && launch->launcher != "osdn")
    launch->idle_gpus = std::max(0, count_gpus() - 1);
  if (launch->node && launch->node->processes == 0) launch->node->processes = std::max(1, count_gpus());
  // One process on one node needs nobody beside it.
  if (launch->node && launch->node->nodes == 1 && launch->node->processes == 1) launch->node.reset();
  return *launch;
}

}  // namespace osdn::dist
