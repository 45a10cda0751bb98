// The launchers of clusters themselves, each starting a job of two ranks on this machine, and two hosts with
// a link between them. A launcher that is not installed, or may not run here, is named and its test passes.
#include <pwd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/integration/launched.h"

namespace osdn {
namespace launchers_test {

using test::check_mentions;
using test::checkpoints_of;
using test::EnvironmentPairs;
using test::lines_of;
using test::Process;
using test::ProcessResult;
using test::RunFolder;
using test::step_name;
using test::timeless_metrics;

ProcessResult shell(const std::string& script, const EnvironmentPairs& environment = {}) {
  const TemporaryDirectory folder;
  return Process({"/bin/sh", "-c", script}, folder.path(), environment).wait();
}

/// The programs that are missing, each with the Debian package that has it; says so.
bool all_there(const std::vector<std::pair<std::string, std::string>>& programs) {
  std::string missing;
  for (const auto& [program, package] : programs)
    if (shell("PATH=$PATH:/usr/sbin:/sbin command -v " + program).exit_code != 0)
      missing += " " + program + " (package " + package + ")";
  if (!missing.empty()) std::fprintf(stderr, "not run here, missing:%s\n", missing.c_str());
  return missing.empty();
}

std::string environment_path() {
  const char* path = std::getenv("PATH");
  return std::filesystem::path(OSDN_BINARY).parent_path().string() + ":" + (path ? path : "/usr/bin:/bin") +
         ":/usr/sbin:/sbin";
}

void check_trained(const RunFolder& folder, int64_t steps) {
  const auto metrics = timeless_metrics(folder.run());
  REQUIRE(static_cast<int64_t>(metrics.size()) == steps);
  for (size_t i = 0; i < metrics.size(); ++i) CHECK(metrics[i]["step"].get<size_t>() == i + 1);
  CHECK(read_json(folder.run() + "/environment.json")["world_size"].get<int>() == 2);
  CHECK(std::filesystem::exists(folder.run() + "/log_rank_1.txt"));
  CHECK(std::filesystem::exists(folder.run() + "/checkpoints/" + step_name(steps)));
}

/// Two hosts: network namespaces with a link between them.
class TwoHosts {
 public:
  TwoHosts() : name_(fmt::format("osdn{}", ::getpid())) {
    const ProcessResult made = shell(fmt::format(
        "export PATH=$PATH:/usr/sbin:/sbin; set -e; ip netns add {0}a; ip netns add {0}b;"
        "ip link add {0}va netns {0}a type veth peer name {0}vb netns {0}b;"
        "ip -n {0}a addr add 10.213.7.1/24 dev {0}va; ip -n {0}b addr add 10.213.7.2/24 dev {0}vb;"
        "for side in a b; do ip -n {0}$side link set lo up; ip -n {0}$side link set {0}v$side up; done",
        name_));
    usable_ = made.exit_code == 0;
    if (!usable_)
      std::fprintf(stderr, "not run here, network namespaces are not permitted: %s\n", made.err.c_str());
  }
  ~TwoHosts() {
    shell(fmt::format("export PATH=$PATH:/usr/sbin:/sbin; ip netns del {0}a; ip netns del {0}b", name_));
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;
  bool usable() const { return usable_; }

  void set_link(const std::string& state) const {
    REQUIRE(shell(fmt::format("PATH=$PATH:/usr/sbin:/sbin ip -n {0}b link set {0}vb {1}", name_, state))
                .exit_code == 0);
  }

  /// The launcher of a node in its namespace, printing into a folder of its own. The run's folder is shared.
  std::unique_ptr<Process> launch(int node, const RunFolder& folder, const std::string& output,
                                  const std::vector<std::string>& overrides) const {
    std::string line =
        fmt::format("PATH=$PATH:/usr/sbin:/sbin; cd {} && exec ip netns exec {}{} {} train small.yaml ",
                    folder.path(), name_, node == 0 ? "a" : "b", OSDN_BINARY);
    line += fmt::format("--processes 1 --nodes 2 --node-rank {} --master 10.213.7.1:29500", node);
    for (const std::string& override : overrides) line += " --set " + override;
    return std::make_unique<Process>(std::vector<std::string>{"/bin/sh", "-c", line}, output,
                                     EnvironmentPairs{{"OMP_NUM_THREADS", "1"}});
  }

 private:
  std::string name_;
  bool usable_ = false;
};

/// A SLURM of this machine as its one node, with all its files in a folder.
class Slurm {
 public:
  Slurm() {
    char host[256] = {};
    ::gethostname(host, sizeof(host) - 1);
    const passwd* user = ::getpwuid(::getuid());
    const std::string& root = folder_.path();
    for (const char* part : {"/munge", "/state", "/spool"}) {
      std::filesystem::create_directory(root + part);
      std::filesystem::permissions(root + part, std::filesystem::perms(0755));
    }
    std::filesystem::permissions(root, std::filesystem::perms(0755));
    // Other ports than the real ones', so that a SLURM of this machine is left alone.
    const int port = 20000 + ::getpid() % 8000 * 2;
    atomic_write(
        root + "/slurm.conf",
        fmt::format(
            "ClusterName=test\nSlurmctldHost=localhost\nSlurmUser={1}\nSlurmdUser={1}\n"
            "AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={0}/munge/socket\n"
            "StateSaveLocation={0}/state\nSlurmdSpoolDir={0}/spool\n"
            "SlurmctldPidFile={0}/slurmctld.pid\nSlurmdPidFile={0}/slurmd.pid\n"
            "SlurmctldPort={2}\nSlurmdPort={3}\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
            "SwitchType=switch/none\nMpiDefault=none\nReturnToService=2\n"
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nGresTypes=gpu\n"
            "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n"
            "NodeName=localhost NodeHostname={4} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2 State=UNKNOWN\n"
            "PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP\n",
            root, user ? user->pw_name : "root", port, port + 1, host));
    // Two devices that are there on every machine stand for GPUs.
    atomic_write(root + "/gres.conf", "Name=gpu File=/dev/zero\nName=gpu File=/dev/full\n");
    atomic_write(root + "/munge.key", std::string(1024, 'k'));
    std::filesystem::permissions(root + "/munge.key", std::filesystem::perms(0400));
    start("munged",
          fmt::format("munged --foreground --force --key-file={0}/munge.key --socket={0}/munge/socket "
                      "--pid-file={0}/munge/pid --log-file={0}/munge/log --seed-file={0}/munge/seed",
                      root));
    start("slurmctld", "slurmctld -D");
    start("slurmd", "slurmd -D -N localhost");
    for (int i = 0; i < 300 && !ready(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ~Slurm() {
    command("scancel --user=$(id -un)");
    for (auto daemon = daemons_.rbegin(); daemon != daemons_.rend(); ++daemon) {
      (*daemon)->signal(SIGTERM);
      (*daemon)->wait();
    }
  }
  Slurm(const Slurm&) = delete;
  Slurm& operator=(const Slurm&) = delete;

  ProcessResult command(const std::string& line) const {
    return shell("PATH=" + environment_path() + "; " + line,
                 {{"SLURM_CONF", folder_.path() + "/slurm.conf"}});
  }
  bool ready() const { return command("sinfo -h -o %t").out.find("idle") != std::string::npos; }
  std::string log(const std::string& daemon) const {
    return read_file(folder_.path() + "/" + daemon + "/stderr.txt");
  }

 private:
  void start(const std::string& name, const std::string& line) {
    std::filesystem::create_directory(folder_.path() + "/" + name);
    daemons_.push_back(std::make_unique<Process>(
        std::vector<std::string>{"/bin/sh", "-c", "PATH=$PATH:/usr/sbin; exec " + line},
        folder_.path() + "/" + name, EnvironmentPairs{{"SLURM_CONF", folder_.path() + "/slurm.conf"}}));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }

  TemporaryDirectory folder_;
  std::vector<std::unique_ptr<Process>> daemons_;
};

}  // namespace launchers_test

TEST_CASE(
    "two hosts train one run; when the link between them is lost both end in time, and later go on from the "
    "newest checkpoint",
    "[launchers][dist]") {
  namespace t = launchers_test;
  if (!t::all_there({{"ip", "iproute2"}})) return;
  const t::TwoHosts hosts;
  if (!hosts.usable()) return;
  const t::RunFolder folder;
  const TemporaryDirectory output[2];
  const std::vector<std::string> endless = {"distributed.timeout_seconds=6", "train.steps=100000",
                                            "evaluation.every_steps=1000000", "checkpoint.every_steps=5"};
  {
    const auto node_0 = hosts.launch(0, folder, output[0].path(), endless);
    const auto node_1 = hosts.launch(1, folder, output[1].path(), endless);
    REQUIRE(test::wait_until(*node_0, [&] { return !t::checkpoints_of(folder.run()).empty(); }));
    hosts.set_link("down");
    const auto lost_at = std::chrono::steady_clock::now();
    const t::ProcessResult first = node_0->wait();
    const t::ProcessResult second = node_1->wait();
    CHECK(std::chrono::steady_clock::now() - lost_at < std::chrono::seconds(60));
    CHECK(first.exit_code == 3);
    CHECK(second.exit_code == 3);
    t::check_mentions(first.err, {"rank 0 of 2, step ", "only 1 of 2 nodes", "missing: node 1"});
    t::check_mentions(second.err, {"node 0 at 10.213.7.1:29500"});
  }
  hosts.set_link("up");
  const int64_t reached = std::stoll(t::checkpoints_of(folder.run()).back().substr(5));
  std::vector<std::string> rest = endless;
  rest[0] = "distributed.timeout_seconds=60";
  rest[1] = fmt::format("train.steps={}", reached + 4);
  const auto node_1 = hosts.launch(1, folder, output[1].path(), rest);
  const auto node_0 = hosts.launch(0, folder, output[0].path(), rest);
  const t::ProcessResult first = node_0->wait();
  INFO(first.err);
  CHECK(first.exit_code == 0);
  CHECK(node_1->wait().exit_code == 0);
  t::check_mentions(first.err, {fmt::format("(step {}, ", reached)});
  t::check_trained(folder, reached + 4);
}

TEST_CASE("a link that comes back within the time-outs costs a restart, not the job", "[launchers][slow]") {
  namespace t = launchers_test;
  if (!t::all_there({{"ip", "iproute2"}})) return;
  const t::TwoHosts hosts;
  if (!hosts.usable()) return;
  const t::RunFolder folder;
  const TemporaryDirectory output[2];
  const std::vector<std::string> overrides = {"distributed.timeout_seconds=8", "train.steps=400",
                                              "evaluation.every_steps=1000000", "checkpoint.every_steps=5"};
  const auto node_0 = hosts.launch(0, folder, output[0].path(), overrides);
  const auto node_1 = hosts.launch(1, folder, output[1].path(), overrides);
  REQUIRE(test::wait_for_step(*node_0, folder.run(), 20));
  hosts.set_link("down");
  std::this_thread::sleep_for(std::chrono::seconds(10));
  hosts.set_link("up");
  const t::ProcessResult first = node_0->wait();
  const t::ProcessResult second = node_1->wait();
  INFO(first.err << "\n" << second.err);
  CHECK(first.exit_code == 0);
  CHECK(second.exit_code == 0);
  t::check_mentions(first.err, {"restart 1 of 3"});
  t::check_mentions(second.err, {"restart 1 of 3"});
  t::check_trained(folder, 400);
}

TEST_CASE("a rank killed on one of two hosts restarts the job on both", "[launchers][slow]") {
  namespace t = launchers_test;
  if (!t::all_there({{"ip", "iproute2"}})) return;
  const t::TwoHosts hosts;
  if (!hosts.usable()) return;
  const t::RunFolder folder;
  const TemporaryDirectory output[2];
  const auto node_0 = hosts.launch(0, folder, output[0].path(), {});
  const auto node_1 = hosts.launch(1, folder, output[1].path(), {});
  const pid_t rank_1 = test::worker_of(node_1->id(), 1);
  REQUIRE(test::wait_for_step(*node_0, folder.run(), 4));
  ::kill(rank_1, SIGKILL);
  const t::ProcessResult first = node_0->wait();
  INFO(first.err);
  CHECK(first.exit_code == 0);
  CHECK(node_1->wait().exit_code == 0);
  t::check_mentions(first.err, {"rank 1 (process ", "died of SIGKILL", "restart 1 of 3"});
  t::check_trained(folder, 12);
}

TEST_CASE("mpirun starts a job of two ranks", "[launchers][slow]") {
  namespace t = launchers_test;
  if (!t::all_there({{"mpirun", "openmpi-bin"}})) return;
  const t::RunFolder folder;
  const t::ProcessResult result =
      t::Process({"/bin/sh", "-c",
                  fmt::format("exec mpirun --allow-run-as-root --oversubscribe -np 2 {} train small.yaml",
                              OSDN_BINARY)},
                 folder.path(), {{"OMP_NUM_THREADS", "1"}})
          .wait();
  INFO(result.err);
  CHECK(result.exit_code == 0);
  t::check_trained(folder, 12);
}

TEST_CASE("SLURM runs the documented sbatch file; told to requeue by a signal, the job resumes and ends",
          "[launchers][slow]") {
  namespace t = launchers_test;
  if (!t::all_there({{"slurmctld", "slurm-wlm"}, {"slurmd", "slurm-wlm"}, {"munged", "munge"}})) return;
  const t::RunFolder folder;
  const t::Slurm slurm;
  INFO(slurm.log("slurmctld") << slurm.log("slurmd"));
  REQUIRE(slurm.ready());
  const std::string submit = fmt::format(
      "cd {} && CUDA_VISIBLE_DEVICES= sbatch --parsable --ntasks-per-node=2 --gpus-per-node=2 "
      "--cpus-per-task=1 "
      "{}/scripts/slurm.sbatch small.yaml --set run.device=cpu --set train.steps=400 "
      "--set checkpoint.every_steps=1000000 --set evaluation.every_steps=1000000",
      folder.path(), OSDN_SOURCE_DIR);
  const t::ProcessResult submitted = slurm.command(submit);
  INFO(submitted.err);
  REQUIRE(submitted.exit_code == 0);
  const std::string job = std::to_string(std::stoll(submitted.out));
  const std::string log = folder.path() + "/osdn-" + job + ".txt";
  const auto log_text = [&] { return std::filesystem::exists(log) ? read_file(log) : std::string(); };
  const auto wait_for = [](const std::function<bool()>& reached) {
    for (int i = 0; i < 1200 && !reached(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return reached();
  };
  CHECK(wait_for([&] { return t::lines_of(folder.run() + "/metrics.jsonl") >= 5; }));
  CHECK(slurm.command("scancel --signal=USR1 " + job).exit_code == 0);
  CHECK(wait_for(
      [&] { return slurm.command("squeue -h -o %t --job " + job).out.find("PD") != std::string::npos; }));
  const std::vector<std::string> saved = t::checkpoints_of(folder.run());
  INFO(log_text());
  REQUIRE(saved.size() == 1);
  const int64_t stopped_at = std::stoll(saved.front().substr(5));
  CHECK(stopped_at < 400);
  CHECK(t::timeless_metrics(folder.run()).back()["step"].get<int64_t>() == stopped_at);
  // SLURM lets a requeued job wait for two minutes.
  CHECK(slurm.command("scontrol update StartTime=now JobId=" + job).exit_code == 0);
  CHECK(wait_for([&] { return log_text().find("small: done, step 400") != std::string::npos; }));
  INFO(log_text());
  t::check_mentions(log_text(), {"goes back into the queue", fmt::format("(step {}, ", stopped_at)});
  CHECK(wait_for([&] { return slurm.command("squeue -h --job " + job).out.empty(); }));
  t::check_trained(folder, 400);
}

TEST_CASE("torchrun starts a job of two ranks, and again after one died", "[launchers][interop]") {
  namespace t = launchers_test;
  const t::ProcessResult torch = t::shell(std::string(OSDN_SOURCE_DIR) + "/tests/interop/torchrun.sh");
  if (torch.exit_code == 77) {
    std::fprintf(stderr, "%s", torch.err.c_str());
    return;
  }
  INFO(torch.err);
  REQUIRE(torch.exit_code == 0);
  const std::string torchrun = torch.out.substr(0, torch.out.find('\n'));
  const t::RunFolder folder;
  t::Process job({"/bin/sh", "-c",
                  fmt::format("exec {} --standalone --nproc-per-node 2 --max-restarts 1 --no-python {} train "
                              "small.yaml --set train.steps=60 --set evaluation.every_steps=1000000",
                              torchrun, OSDN_BINARY)},
                 folder.path(), {{"OMP_NUM_THREADS", "1"}, {"OSDN_TEST_MARK", folder.path()}});
  REQUIRE(test::wait_for_step(job, folder.run(), 5));
  const pid_t rank_1 = test::process_of_rank(1, "OSDN_TEST_MARK=" + folder.path());
  REQUIRE(rank_1 > 0);
  ::kill(rank_1, SIGKILL);
  const t::ProcessResult result = job.wait();
  INFO(result.err);
  CHECK(result.exit_code == 0);
  t::check_mentions(result.err, {"resuming from"});
  t::check_trained(folder, 60);
}

}  // namespace osdn
