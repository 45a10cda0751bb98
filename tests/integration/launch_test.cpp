// `osdn train` as launcher of its node, over Gloo: who starts, who is told, who ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "tests/integration/launched.h"

namespace osdn {
namespace launch_integration {

using Clock = std::chrono::steady_clock;
using test::check_mentions;
using test::checkpoints_of;
using test::count_of;
using test::RunFolder;
using test::start_two;
using test::step_name;
using test::timeless_metrics;
using test::wait_for_step;
using test::worker_of;

/// The undisturbed job of two processes, trained once, and what it printed.
struct StraightJob {
  RunFolder folder;
  test::ProcessResult result;
};
const StraightJob& straight_job() {
  static StraightJob job;
  static const bool trained = [] {
    job.result = start_two(job.folder)->wait();
    INFO(job.result.err);
    REQUIRE(job.result.exit_code == 0);
    return true;
  }();
  static_cast<void>(trained);
  return job;
}

void check_equals_straight_job(const RunFolder& folder) {
  CHECK(timeless_metrics(folder.run()) == timeless_metrics(straight_job().folder.run()));
  const std::string file = "/checkpoints/" + step_name(12) + "/model.safetensors";
  CHECK(read_file(folder.run() + file) == read_file(straight_job().folder.run() + file));
}

/// Never ends by itself, and saves rarely: what is saved was asked for.
const std::vector<std::string>& endless() {
  static const std::vector<std::string> overrides = {"train.steps=100000", "checkpoint.every_steps=1000000",
                                                     "evaluation.every_steps=1000000"};
  return overrides;
}

/// After a stop: one complete checkpoint, of the last recorded step.
void check_stopped(const RunFolder& folder) {
  const int64_t last = timeless_metrics(folder.run()).back()["step"].get<int64_t>();
  CHECK(checkpoints_of(folder.run()) == std::vector<std::string>{step_name(last)});
}

bool is_gone(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(") ");
  return end == std::string::npos || text[end + 2] == 'Z';
}

/// A port that somebody listens on without ever answering.
class SilentListener {
 public:
  SilentListener() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    REQUIRE(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(::listen(socket_, 8) == 0);
    socklen_t size = sizeof(address);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~SilentListener() { ::close(socket_); }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;
  int port() const { return port_; }

 private:
  int socket_;
  int port_ = 0;
};

/// One that nobody listens on now.
int free_port() { return SilentListener().port(); }

/// One rank as another launcher would start it.
test::ProcessResult run_rank(const RunFolder& folder, const test::EnvironmentPairs& environment,
                             const std::vector<std::string>& overrides = {"distributed.timeout_seconds=1"}) {
  return test::run_osdn(folder.train_arguments(overrides), folder.path(), environment);
}

}  // namespace launch_integration

TEST_CASE("two processes train one run: its files once, a log a rank, the terminal for rank 0",
          "[launch][dist]") {
  namespace t = launch_integration;
  const auto& [folder, result] = t::straight_job();
  const auto metrics = t::timeless_metrics(folder.run());
  REQUIRE(metrics.size() == 12);
  for (size_t i = 0; i < metrics.size(); ++i) CHECK(metrics[i]["step"].get<size_t>() == i + 1);
  // The same global batches as one process: the same losses within rounding.
  const auto alone = t::timeless_metrics(test::trained_run().run());
  for (size_t i = 0; i < metrics.size(); ++i)
    CHECK(metrics[i]["loss"].get<double>() == Approx(alone[i]["loss"].get<double>()).epsilon(1e-4));
  CHECK(read_json(folder.run() + "/environment.json")["world_size"].get<int>() == 2);
  CHECK(std::filesystem::file_size(folder.run() + "/log_rank_1.txt") > 0);
  t::check_mentions(result.err, {"starting ranks 0 to 1 of 2", "small: done, step 12"});
  CHECK(t::count_of(result.err, "12 steps of 512 tokens") == 1);
  CHECK(t::count_of(result.err, "small: done, step 12") == 1);
}

TEST_CASE("a rank killed with -9 is named, all start again and end with the bits of an undisturbed job",
          "[launch][dist]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const auto job = t::start_two(folder, {"distributed.max_restarts=2"});
  const pid_t rank_0 = t::worker_of(job->id(), 0);
  const pid_t rank_1 = t::worker_of(job->id(), 1);
  REQUIRE(t::wait_for_step(*job, folder.run(), 5));
  ::kill(rank_1, SIGKILL);
  const test::ProcessResult result = job->wait();
  INFO(result.err);
  CHECK(result.exit_code == 0);
  t::check_mentions(result.err, {"rank 1 (process ", "died of SIGKILL", "restart 1 of 2", "resuming from"});
  t::check_mentions(read_file(folder.run() + "/log.txt"), {"died of SIGKILL", "restart 1 of 2"});
  CHECK(t::is_gone(rank_0));
  t::check_equals_straight_job(folder);
}

TEST_CASE(
    "when the restarts are used up the job ends with the failure's exit code and quotes the rank's last "
    "words",
    "[launch][dist]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const auto job = t::start_two(folder, {"distributed.max_restarts=0", "train.steps=100000"});
  const pid_t rank_0 = t::worker_of(job->id(), 0);
  const pid_t rank_1 = t::worker_of(job->id(), 1);
  REQUIRE(t::wait_for_step(*job, folder.run(), 3));
  ::kill(rank_1, SIGSEGV);
  const test::ProcessResult result = job->wait();
  INFO(result.err);
  CHECK(result.exit_code == 5);
  t::check_mentions(result.err, {"rank 1 (process ", "died of SIGSEGV; its last line: error died of SIGSEGV",
                                 "distributed.max_restarts: 0"});
  t::check_mentions(read_file(folder.run() + "/log_rank_1.txt"), {"died of SIGSEGV"});
  CHECK(t::is_gone(rank_0));
}

TEST_CASE("what a restart cannot cure ends the job at once, told by the rank that met it", "[launch][dist]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const test::ProcessResult result = t::start_two(folder, {"data.train=[nowhere/*.h5]"})->wait();
  CHECK(result.exit_code == 2);
  t::check_mentions(result.err, {"nowhere/*.h5", "ended with exit code 2", "starting again would not help"});
  CHECK(result.err.find("restart 1") == std::string::npos);
  const test::ProcessResult no_gpu =
      t::start_two(folder, {"run.device=cuda"}, {"--processes", "2"}, {{"CUDA_VISIBLE_DEVICES", ""}})->wait();
  CHECK(no_gpu.exit_code == 3);
  t::check_mentions(no_gpu.err, {"run.device", "GPU"});
  CHECK(no_gpu.err.find("starting ranks") == std::string::npos);
  const test::ProcessResult uneven = t::start_two(folder, {}, {"--processes", "3"})->wait();
  CHECK(uneven.exit_code == 2);
  t::check_mentions(uneven.err, {"train.global_batch_tokens", "3 processes"});
}

TEST_CASE("a signal to the launcher or to any one rank stops all ranks at one step, with its checkpoint",
          "[launch][dist]") {
  namespace t = launch_integration;
  struct Case {
    int signal;
    int to_rank;  // -1: the launcher
    int exit_code;
  };
  for (const Case& one : {Case{SIGTERM, -1, 143}, Case{SIGUSR1, 1, 143}, Case{SIGINT, -1, 130}}) {
    const t::RunFolder folder;
    const auto job = t::start_two(folder, t::endless());
    const pid_t process = one.to_rank < 0 ? job->id() : t::worker_of(job->id(), one.to_rank);
    REQUIRE(t::wait_for_step(*job, folder.run(), 3));
    ::kill(process, one.signal);
    const test::ProcessResult result = job->wait();
    INFO(result.err);
    CHECK(result.exit_code == one.exit_code);
    t::check_stopped(folder);
    CHECK(result.err.find("restart") == std::string::npos);
  }
}

TEST_CASE("a signal that reaches the launcher and every rank at once counts as one", "[launch][dist]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const auto job = t::start_two(folder, t::endless());
  const pid_t ranks[] = {t::worker_of(job->id(), 0), t::worker_of(job->id(), 1)};
  REQUIRE(t::wait_for_step(*job, folder.run(), 3));
  job->signal(SIGTERM);
  for (const pid_t rank : ranks) ::kill(rank, SIGTERM);
  const test::ProcessResult result = job->wait();
  INFO(result.err);
  CHECK(result.exit_code == 143);
  t::check_stopped(folder);
}

TEST_CASE("a second signal ends the job at once, without a restart", "[launch][dist]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const bool to_one_rank = GENERATE(false, true);
  const auto job = t::start_two(folder, t::endless());
  const pid_t process = to_one_rank ? t::worker_of(job->id(), 1) : job->id();
  REQUIRE(t::wait_for_step(*job, folder.run(), 3));
  ::kill(process, SIGTERM);
  ::kill(process, SIGUSR1);
  const test::ProcessResult result = job->wait();
  INFO(result.err);
  CHECK(result.exit_code == 143);
  CHECK(result.err.find("restart 1") == std::string::npos);
}

TEST_CASE("a rank that stands still ends the job by time-out, naming rank, step and collective",
          "[launch][dist]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  std::vector<std::string> overrides = t::endless();
  overrides.insert(overrides.end(), {"distributed.timeout_seconds=4", "distributed.max_restarts=0"});
  const auto job = t::start_two(folder, overrides);
  const pid_t rank_1 = t::worker_of(job->id(), 1);
  REQUIRE(t::wait_for_step(*job, folder.run(), 3));
  const auto stopped_at = t::Clock::now();
  ::kill(rank_1, SIGSTOP);
  const test::ProcessResult result = job->wait();
  INFO(result.err);
  CHECK(result.exit_code == 3);
  CHECK(t::Clock::now() - stopped_at < std::chrono::seconds(4 + 15));
  t::check_mentions(result.err,
                    {"rank 0 of 2, step ", "rank 0 (process ", "rank 1 (process ", "is stopped (SIGSTOP"});
  CHECK(t::is_gone(rank_1));
}

TEST_CASE("no rank outlives a launcher that is killed", "[launch][dist]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const auto job = t::start_two(folder, t::endless());
  const pid_t ranks[] = {t::worker_of(job->id(), 0), t::worker_of(job->id(), 1)};
  REQUIRE(t::wait_for_step(*job, folder.run(), 2));
  job->signal(SIGKILL);
  job->wait();
  for (const pid_t rank : ranks) {
    for (int i = 0; i < 2000 && !t::is_gone(rank); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(t::is_gone(rank));
  }
}

TEST_CASE("ranks of another launcher that cannot meet say where and how many came, within the time-out",
          "[launch][dist]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const auto rank = [](int number, int world, const std::string& host, int port) {
    return test::EnvironmentPairs{{"RANK", std::to_string(number)},
                                  {"WORLD_SIZE", std::to_string(world)},
                                  {"MASTER_ADDR", host},
                                  {"MASTER_PORT", std::to_string(port)}};
  };
  const auto start = t::Clock::now();
  // Nobody listens.
  const int port = t::free_port();
  const test::ProcessResult closed = t::run_rank(folder, rank(1, 2, "127.0.0.1", port));
  CHECK(closed.exit_code == 3);
  t::check_mentions(closed.err, {"rank 1 of 2", fmt::format("127.0.0.1:{}", port), "1 s", "refused"});
  CHECK(closed.err.find("[c10d]") == std::string::npos);  // LibTorch's own words of it, with a stack trace
  // A name that does not exist.
  const test::ProcessResult nowhere = t::run_rank(folder, rank(1, 2, "no-such-host.invalid", port));
  CHECK(nowhere.exit_code == 3);
  t::check_mentions(nowhere.err, {"no-such-host.invalid", "does not resolve"});
  // Rank 0 alone.
  const test::ProcessResult alone = t::run_rank(folder, rank(0, 2, "127.0.0.1", port));
  CHECK(alone.exit_code == 3);
  t::check_mentions(alone.err, {"1 of 2 ranks", fmt::format("127.0.0.1:{}", port)});
  // The port is another's, who does not speak.
  const t::SilentListener taken;
  const test::ProcessResult in_use = t::run_rank(folder, rank(0, 2, "127.0.0.1", taken.port()));
  CHECK(in_use.exit_code == 3);
  t::check_mentions(in_use.err, {fmt::format("127.0.0.1:{}", taken.port()), "MASTER_PORT"});
  CHECK(t::Clock::now() - start < std::chrono::seconds(40));
}

TEST_CASE("launchers of several nodes that cannot meet say what is missing, within the time-out",
          "[launch][dist]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const auto launch = [&](int nodes, int node, int port, const std::string& directory, int timeout = 1) {
    std::vector<std::string> arguments = {OSDN_BINARY,
                                          "train",
                                          folder.path() + "/small.yaml",
                                          "--set",
                                          fmt::format("distributed.timeout_seconds={}", timeout),
                                          "--processes",
                                          "1",
                                          "--nodes",
                                          std::to_string(nodes),
                                          "--node-rank",
                                          std::to_string(node),
                                          "--master",
                                          fmt::format("127.0.0.1:{}", port)};
    return std::make_unique<test::Process>(arguments, directory);
  };
  const TemporaryDirectory here, there;
  const int port = t::free_port();
  const test::ProcessResult alone = launch(2, 0, port, here.path())->wait();
  CHECK(alone.exit_code == 3);
  t::check_mentions(alone.err, {"only 1 of 2 nodes", fmt::format("127.0.0.1:{}", port), "missing: node 1"});
  const test::ProcessResult unreachable = launch(2, 1, port, here.path())->wait();
  CHECK(unreachable.exit_code == 3);
  t::check_mentions(unreachable.err,
                    {"cannot reach the launcher of node 0", fmt::format("127.0.0.1:{}", port)});
  const t::SilentListener taken;
  const test::ProcessResult in_use = launch(2, 0, taken.port(), here.path())->wait();
  CHECK(in_use.exit_code == 3);
  t::check_mentions(in_use.err, {fmt::format("127.0.0.1:{}", taken.port()), "the port is in use"});
  // Disagreement about the number of nodes, and ranks that are taken.
  const TemporaryDirectory elsewhere;
  const auto first = launch(3, 0, port, here.path(), 120);
  const auto second = launch(3, 1, port, there.path(), 120);
  const test::ProcessResult two = launch(2, 1, port, elsewhere.path(), 120)->wait();
  CHECK(two.exit_code == 2);
  t::check_mentions(two.err, {"--nodes 2", "--nodes 3"});
  const test::ProcessResult twin = launch(3, 1, port, elsewhere.path(), 120)->wait();
  CHECK(twin.exit_code == 2);
  t::check_mentions(twin.err, {"--node-rank 1", "another launcher"});
  // A signal ends those that still wait for a third.
  for (const auto& waiting : {first.get(), second.get()}) {
    waiting->signal(SIGTERM);
    CHECK(waiting->wait().exit_code == 143);
  }
}

TEST_CASE("launchers of two nodes train one run, and a signal to any of them stops all", "[launch][dist]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const TemporaryDirectory output[2];
  const int port = t::free_port();
  const auto launch = [&](int node) {
    std::vector<std::string> arguments = {OSDN_BINARY,
                                          "train",
                                          folder.path() + "/small.yaml",
                                          "--processes",
                                          "1",
                                          "--nodes",
                                          "2",
                                          "--node-rank",
                                          std::to_string(node),
                                          "--master",
                                          fmt::format("127.0.0.1:{}", port)};
    for (const std::string& override : t::endless()) arguments.insert(arguments.end(), {"--set", override});
    for (const std::string& part : {"data.train=[" + folder.path() + "/shards/train-*.h5]",
                                    "data.validation=[" + folder.path() + "/shards/valid-*.h5]",
                                    "data.tokenizer=" + folder.path() + "/shards/tokenizer.model",
                                    "run.directory=" + folder.path() + "/runs"})
      arguments.insert(arguments.end(), {"--set", part});
    return std::make_unique<test::Process>(arguments, output[node].path(),
                                           test::EnvironmentPairs{{"OMP_NUM_THREADS", "1"}});
  };
  const auto node_1 = launch(1);
  const auto node_0 = launch(0);
  const bool trained = t::wait_for_step(*node_0, folder.run(), 3);
  node_1->signal(SIGTERM);
  const test::ProcessResult first = node_0->wait();
  const test::ProcessResult second = node_1->wait();
  INFO(first.err << second.err);
  REQUIRE(trained);
  CHECK(first.exit_code == 143);
  CHECK(second.exit_code == 143);
  t::check_stopped(folder);
  CHECK(read_json(folder.run() + "/environment.json")["world_size"].get<int>() == 2);
}

TEST_CASE("of four ranks one that stands still at the start or while it saves ends the job in time",
          "[launch][slow]") {
  namespace t = launch_integration;
  for (const bool at_start : {true, false}) {
    const t::RunFolder folder;
    // A checkpoint every step: it is stopped during one, or between two.
    const auto job =
        t::start_two(folder,
                     {"distributed.timeout_seconds=8", "distributed.max_restarts=0", "train.steps=100000",
                      "checkpoint.every_steps=1", "train.micro_batch_sequences=2"},
                     {"--processes", "4"});
    const pid_t rank_2 = t::worker_of(job->id(), 2);
    if (!at_start) {
      REQUIRE(t::wait_for_step(*job, folder.run(), 3));
    }
    const auto stopped_at = t::Clock::now();
    ::kill(rank_2, SIGSTOP);
    const test::ProcessResult result = job->wait();
    INFO(result.err);
    CHECK(result.exit_code == 3);
    CHECK(t::Clock::now() - stopped_at < std::chrono::seconds(8 + 20));
    t::check_mentions(result.err, {"rank 2 (process ", "is stopped (SIGSTOP", " of 4"});
    CHECK(t::is_gone(rank_2));
  }
}

TEST_CASE("a node whose node 0 is gone ends in time and says so", "[launch][slow]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const TemporaryDirectory output;
  const int port = t::free_port();
  const auto more = [&](int node) {
    return std::vector<std::string>{"--processes", "1",
                                    "--nodes",     "2",
                                    "--node-rank", std::to_string(node),
                                    "--master",    fmt::format("127.0.0.1:{}", port)};
  };
  std::vector<std::string> overrides = t::endless();
  overrides.push_back("distributed.timeout_seconds=5");
  const auto node_0 = t::start_two(folder, overrides, more(0));
  std::string line = "cd " + folder.path() + " && exec " + OSDN_BINARY;
  for (const std::string& word : folder.train_arguments(overrides)) line += " " + word;
  for (const std::string& word : more(1)) line += " " + word;
  test::Process node_1({"/bin/sh", "-c", line}, output.path(), {{"OMP_NUM_THREADS", "1"}});
  REQUIRE(t::wait_for_step(*node_0, folder.run(), 3));
  node_0->signal(SIGKILL);
  const auto killed_at = t::Clock::now();
  const test::ProcessResult result = node_1.wait();
  INFO(result.err);
  CHECK(result.exit_code == 3);
  CHECK(t::Clock::now() - killed_at < std::chrono::seconds(30));
  t::check_mentions(result.err, {"rank 1 of 2, step ", "launcher of node 0 at 127.0.0.1"});
}

TEST_CASE("kill -9 of any rank at random moments, and the job still ends with the bits of an undisturbed one",
          "[launch][slow]") {
  namespace t = launch_integration;
  std::mt19937 random(3);
  int num_kills = 0;
  for (int round = 0; round < 30 && num_kills < 20; ++round) {
    const t::RunFolder folder;
    const auto job = t::start_two(folder, {"distributed.max_restarts=100", "checkpoint.every_steps=1"});
    for (int kill = 0; kill < 5; ++kill) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 700));
      if (!job->running()) break;
      const pid_t process = t::worker_of(job->id(), static_cast<int>(random() % 2), 1);
      if (process == 0) continue;
      ::kill(process, SIGKILL);
      ++num_kills;
    }
    const test::ProcessResult result = job->wait();
    INFO(result.err);
    CHECK(result.exit_code == 0);
    t::check_equals_straight_job(folder);
  }
  CHECK(num_kills >= 20);
}

TEST_CASE("more processes than GPUs are refused before any is started", "[launch][cuda]") {
  namespace t = launch_integration;
  const t::RunFolder folder;
  const test::ProcessResult result =
      t::start_two(folder, {}, {"--processes", "2"}, {{"CUDA_VISIBLE_DEVICES", "0"}})->wait();
  CHECK(result.exit_code == 2);
  t::check_mentions(result.err, {"2 processes on this node", "1 is visible"});
  CHECK(result.err.find("starting ranks") == std::string::npos);
}

}  // namespace osdn
