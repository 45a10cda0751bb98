// What the launchers' variables mean, as each launcher sets them, and what is said when they do not fit.
#include "dist/launch.h"

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/catch.h"

namespace osdn::dist {
namespace launch_test {

using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

Launch detect(const Variables& variables, const LaunchRequest& request = {}, int gpus = 0) {
  return detect_launch(request, environment(variables), [gpus] { return gpus; });
}

void check_process(const Launch& launch, const std::string& launcher, const LaunchEnvironment& expected) {
  CHECK(launch.launcher == launcher);
  REQUIRE(!launch.node);
  CHECK(launch.process.rank == expected.rank);
  CHECK(launch.process.world_size == expected.world_size);
  CHECK(launch.process.local_rank == expected.local_rank);
  CHECK(launch.process.local_world_size == expected.local_world_size);
  CHECK(launch.process.master_addr == expected.master_addr);
  if (expected.master_port != 0) CHECK(launch.process.master_port == expected.master_port);
  CHECK(launch.process.restart_count == expected.restart_count);
  CHECK(launch.process.launcher_serves == expected.launcher_serves);
}

void check_node(const Launch& launch, const Node& expected) {
  REQUIRE(launch.node);
  CHECK(launch.node->nodes == expected.nodes);
  CHECK(launch.node->node_rank == expected.node_rank);
  CHECK(launch.node->processes == expected.processes);
  CHECK(launch.node->master_addr == expected.master_addr);
  CHECK(launch.node->master_port == expected.master_port);
}

void check_refused(const Variables& variables, const LaunchRequest& request,
                   const std::vector<std::string>& mentions) {
  std::string message = "nothing was thrown";
  try {
    detect(variables, request);
  } catch (const UserError& failure) {
    message = failure.what();
  }
  for (const std::string& part : mentions) {
    INFO("looking for \"" << part << "\" in: " << message);
    CHECK(message.find(part) != std::string::npos);
  }
}

const Variables& torchrun() {
  static const Variables variables = {{"RANK", "5"},
                                      {"WORLD_SIZE", "8"},
                                      {"LOCAL_RANK", "1"},
                                      {"LOCAL_WORLD_SIZE", "4"},
                                      {"MASTER_ADDR", "node-a"},
                                      {"MASTER_PORT", "29500"},
                                      {"TORCHELASTIC_RUN_ID", "none"},
                                      {"TORCHELASTIC_RESTART_COUNT", "2"},
                                      {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  return variables;
}

const Variables& srun() {
  static const Variables variables = {{"SLURM_JOB_ID", "77"},
                                      {"SLURM_STEP_ID", "0"},
                                      {"SLURM_PROCID", "3"},
                                      {"SLURM_NTASKS", "16"},
                                      {"SLURM_STEP_NUM_TASKS", "4"},
                                      {"SLURM_LOCALID", "0"},
                                      {"SLURM_NODEID", "2"},
                                      {"SLURM_STEP_TASKS_PER_NODE", "1,2,1"},
                                      {"SLURM_STEP_NODELIST", "gpu[07-09]"}};
  return variables;
}

const Variables& mpirun() {
  static const Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                                      {"OMPI_COMM_WORLD_SIZE", "2"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                      {"PMIX_NAMESPACE", "123456"}};
  return variables;
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

}  // namespace launch_test

TEST_CASE("without a launcher one process a visible GPU is started, on a CPU none beside this one",
          "[launch]") {
  namespace t = launch_test;
  t::check_process(t::detect({}), "none", {});
  t::check_process(t::detect({}, {}, 1), "none", {});
  t::check_node(t::detect({}, {}, 8), {.nodes = 1, .node_rank = 0, .processes = 8});
  t::check_node(t::detect({}, {.processes = 2}), {.nodes = 1, .node_rank = 0, .processes = 2});
  t::check_process(t::detect({}, {.processes = 1}, 8), "none", {});
  t::check_node(t::detect({}, {.processes = 1, .nodes = 2, .node_rank = 1, .master = "node-a:29500"}),
                {.nodes = 2, .node_rank = 1, .processes = 1, .master_addr = "node-a", .master_port = 29500});
  t::check_node(
      t::detect({}, {.nodes = 3, .node_rank = 0, .master = "[2001:db8::1]:29501"}, 4),
      {.nodes = 3, .node_rank = 0, .processes = 4, .master_addr = "2001:db8::1", .master_port = 29501});
}

TEST_CASE("torchrun's variables are honoured, restarts and its store included", "[launch]") {
  namespace t = launch_test;
  t::check_process(t::detect(t::torchrun()), "torchrun",
                   {.rank = 5,
                    .world_size = 8,
                    .local_rank = 1,
                    .local_world_size = 4,
                    .master_addr = "node-a",
                    .master_port = 29500,
                    .restart_count = 2,
                    .launcher_serves = true});
  // Also inside of a SLURM step, which starts torchrun once a node.
  t::check_process(t::detect(t::with(t::srun(), t::torchrun())), "torchrun",
                   {.rank = 5,
                    .world_size = 8,
                    .local_rank = 1,
                    .local_world_size = 4,
                    .master_addr = "node-a",
                    .master_port = 29500,
                    .restart_count = 2,
                    .launcher_serves = true});
}

TEST_CASE("a PyTorchJob is one process a pod, or the launcher of its pod with nprocPerNode, as a TrainJob is",
          "[launch]") {
  namespace t = launch_test;
  const t::Variables pod = {
      {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}};
  t::check_process(t::detect(pod), "PyTorchJob",
                   {.rank = 1, .world_size = 4, .master_addr = "job-master-0", .master_port = 23456});
  const t::Variables eight = t::with(
      pod, {{"WORLD_SIZE", "32"}, {"PET_NPROC_PER_NODE", "8"}, {"PET_NNODES", "4"}, {"PET_NODE_RANK", "1"}});
  const Node node = {
      .nodes = 4, .node_rank = 1, .processes = 8, .master_addr = "job-master-0", .master_port = 23456};
  t::check_node(t::detect(eight), node);
  t::check_node(t::detect(t::with(eight, {{"WORLD_SIZE", "4"}, {"PET_NPROC_PER_NODE", "auto"}}), {}, 8),
                node);
  t::check_refused(t::with(eight, {{"WORLD_SIZE", "31"}}), {}, {"WORLD_SIZE", "32", "31", "PET_NNODES"});
  // A TrainJob sets these alone.
  const t::Variables train_job = {{"PET_NNODES", "4"},
                                  {"PET_NODE_RANK", "1"},
                                  {"PET_NPROC_PER_NODE", "8"},
                                  {"PET_MASTER_ADDR", "job-master-0"},
                                  {"PET_MASTER_PORT", "23456"}};
  t::check_node(t::detect(train_job), node);
  t::check_node(t::detect(t::with(train_job, {{"PET_NPROC_PER_NODE", "gpu"}}), {}, 8), node);
  t::check_node(
      t::detect(t::with(train_job, {{"PET_NPROC_PER_NODE", "1"}})),
      {.nodes = 4, .node_rank = 1, .processes = 1, .master_addr = "job-master-0", .master_port = 23456});
  t::check_refused(t::with(train_job, {{"PET_NODE_RANK", ""}}), {}, {"PET_NODE_RANK", "beside PET_NNODES"});
  t::check_refused(t::with(train_job, {{"PET_MASTER_ADDR", ""}}), {}, {"PET_MASTER_ADDR", "found none"});
}

TEST_CASE("srun's variables are honoured: first host of the step, a port of the job, tasks of the node",
          "[launch]") {
  namespace t = launch_test;
  const LaunchEnvironment expected = {
      .rank = 3, .world_size = 4, .local_rank = 0, .local_world_size = 1, .master_addr = "gpu07"};
  const Launch launch = t::detect(t::srun());
  t::check_process(launch, "srun", expected);
  CHECK(launch.process.master_port >= 15000);
  CHECK(launch.process.master_port < 31000);
  // All tasks of a step go to one port, another job to another.
  CHECK(t::detect(t::with(t::srun(), {{"SLURM_PROCID", "1"}})).process.master_port ==
        launch.process.master_port);
  CHECK(t::detect(t::with(t::srun(), {{"SLURM_JOB_ID", "78"}})).process.master_port !=
        launch.process.master_port);
  const Launch chosen =
      t::detect(t::with(t::srun(), {{"MASTER_ADDR", "ib-gpu07"}, {"MASTER_PORT", "29500"}}));
  CHECK(chosen.process.master_addr == "ib-gpu07");
  CHECK(chosen.process.master_port == 29500);
  // On one node nothing needs to be resolved.
  const t::Variables one_node = {{"SLURM_JOB_ID", "77"},       {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"},
                                 {"SLURM_NTASKS", "2"},        {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "0"},
                                 {"SLURM_TASKS_PER_NODE", "2"}};
  t::check_process(
      t::detect(one_node), "srun",
      {.rank = 1, .world_size = 2, .local_rank = 1, .local_world_size = 2, .master_addr = "127.0.0.1"});
}

TEST_CASE("the batch script of SLURM and a step of one task are no launch", "[launch]") {
  namespace t = launch_test;
  t::Variables batch = t::srun();
  batch.erase("SLURM_STEP_ID");
  t::check_node(t::detect(batch, {}, 8), {.nodes = 1, .node_rank = 0, .processes = 8});
  t::check_node(t::detect(t::with(t::srun(), {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}), {}, 4),
                {.nodes = 1, .node_rank = 0, .processes = 4});
}

TEST_CASE("one task a node with processes asked for starts them on every node", "[launch]") {
  namespace t = launch_test;
  const Launch launch =
      t::detect(t::with(t::srun(), {{"SLURM_STEP_TASKS_PER_NODE", "1(x4)"}}), {.processes = 8});
  REQUIRE(launch.node);
  CHECK(launch.node->nodes == 4);
  CHECK(launch.node->node_rank == 3);
  CHECK(launch.node->processes == 8);
  CHECK(launch.node->master_addr == "gpu07");
  CHECK(launch.node->master_port >= 15000);
}

TEST_CASE("one process on a node of several GPUs is noticed, where a launcher of clusters started it",
          "[launch]") {
  namespace t = launch_test;
  const t::Variables one_a_node = t::with(t::srun(), {{"SLURM_STEP_TASKS_PER_NODE", "1(x4)"}});
  CHECK(t::detect(one_a_node, {}, 8).idle_gpus == 7);
  CHECK(t::detect(one_a_node, {}, 1).idle_gpus == 0);
  CHECK(t::detect(one_a_node).idle_gpus == 0);
  CHECK(t::detect(t::mpirun(), {}, 8).idle_gpus == 0);
  CHECK(t::detect(
            t::with(t::torchrun(), {{kWorkerVariable, "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}),
            {}, 8)
            .idle_gpus == 0);
}

TEST_CASE("Open MPI's variables are honoured; across hosts it needs the master's address", "[launch]") {
  namespace t = launch_test;
  t::check_process(
      t::detect(t::mpirun()), "mpirun",
      {.rank = 1, .world_size = 2, .local_rank = 1, .local_world_size = 2, .master_addr = "127.0.0.1"});
  const t::Variables two_hosts =
      t::with(t::mpirun(), {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  t::check_refused(two_hosts, {}, {"MASTER_ADDR", "mpirun -x MASTER_ADDR"});
  CHECK(t::detect(t::with(two_hosts, {{"MASTER_ADDR", "node-a"}})).process.master_addr == "node-a");
  // mpirun reaches other nodes by a step of its own, whose variables its ranks inherit.
  CHECK(t::detect(t::with(t::srun(), t::mpirun())).launcher == "mpirun");
}

TEST_CASE("the program's own workers take their rank from it and ignore the arguments they share with it",
          "[launch]") {
  namespace t = launch_test;
  const Launch launch = t::detect(t::with(t::torchrun(), {{kWorkerVariable, "1"}}),
                                  {.processes = 3, .nodes = 2, .node_rank = 1, .master = "node-a:29500"});
  CHECK(launch.launcher == "osdn");
  REQUIRE(!launch.node);
  CHECK(launch.process.rank == 5);
}

TEST_CASE("missing, unreadable and contradicting variables are refused by name", "[launch]") {
  namespace t = launch_test;
  const auto changed = [](const t::Variables& changes) { return t::with(t::torchrun(), changes); };
  const struct {
    t::Variables variables;
    LaunchRequest request;
    std::vector<std::string> mentions;
  } cases[] = {
      {{{"RANK", "0"}}, {}, {"WORLD_SIZE", "beside RANK", "found none"}},
      {{{"WORLD_SIZE", "2"}}, {}, {"environment variable RANK", "beside WORLD_SIZE"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {}, {"MASTER_ADDR", "host of rank 0", "found none"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}, {}, {"MASTER_PORT", "found none"}},
      {changed({{"MASTER_PORT", "70000"}}), {}, {"MASTER_PORT", "1 to 65535", "70000"}},
      {changed({{"MASTER_PORT", "http"}}), {}, {"MASTER_PORT", "\"http\""}},
      {changed({{"RANK", "eight"}}), {}, {"RANK", "whole number", "\"eight\""}},
      {changed({{"RANK", "-1"}}), {}, {"RANK", "\"-1\""}},
      {changed({{"RANK", "8"}}), {}, {"RANK and WORLD_SIZE", "below", "8 and 8"}},
      {changed({{"LOCAL_RANK", "4"}}), {}, {"LOCAL_RANK", "below", "4 and 4"}},
      {changed({{"LOCAL_WORLD_SIZE", "9"}}), {}, {"LOCAL_WORLD_SIZE", "at most", "9"}},
      {changed({}), {.processes = 2}, {"processes_per_node", "torchrun started 4", "2 are asked for"}},
      {changed({}), {.nodes = 2}, {"--nodes", "torchrun", "rank 5 of 8"}},
      // A batch file that exports RANK=0 gives it to every task.
      {t::with(t::srun(), {{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
       {},
       {"contradict", "rank 0 of 1", "rank 3 of 4 by srun"}},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, {}, {"OMPI_COMM_WORLD_SIZE", "found none"}},
      {t::with(t::srun(), {{"SLURM_PROCID", "4"}}), {}, {"SLURM_PROCID and SLURM_STEP_NUM_TASKS", "4 and 4"}},
      {{}, {.nodes = 2, .master = "a:1"}, {"--nodes 2", "--node-rank"}},
      {{}, {.nodes = 2, .node_rank = 0}, {"--nodes 2", "--master HOST:PORT"}},
      {{}, {.nodes = 2, .node_rank = 2, .master = "a:1"}, {"--node-rank", "0 to 1", "got 2"}},
      {{}, {.nodes = 2, .node_rank = 0, .master = "a"}, {"--master", "HOST:PORT", "\"a\""}},
      {{}, {.nodes = 2, .node_rank = 0, .master = "a:99999"}, {"--master", "99999"}},
  };
  for (const auto& one : cases) t::check_refused(one.variables, one.request, one.mentions);
}

TEST_CASE("SLURM's short forms of host lists and task counts are read", "[launch]") {
  CHECK(first_host("node07") == "node07");
  CHECK(first_host("node[07-09,12],login1") == "node07");
  CHECK(first_host("node[3,5]") == "node3");
  CHECK(first_host("a1,b[1-2]") == "a1");
  CHECK(first_host("rack[2-3]n[01-04]-ib") == "rack2n01-ib");
  CHECK(first_host("gpu-a[10-11]") == "gpu-a10");
  CHECK(first_host("") == "");
  CHECK(tasks_on_node("4", 0) == 4);
  CHECK(tasks_on_node("4(x2),2", 1) == 4);
  CHECK(tasks_on_node("4(x2),2", 2) == 2);
  CHECK(!tasks_on_node("4(x2),2", 3));
  CHECK(!tasks_on_node("", 0));
  CHECK(!tasks_on_node("many", 0));
}

}  // namespace osdn::dist
