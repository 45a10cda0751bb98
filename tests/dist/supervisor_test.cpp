// Starting, watching and ending of the processes of a node, with shell scripts for workers.
#include "dist/supervisor.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/fs.h"
#include "dist/launch.h"
#include "tests/support/catch.h"

namespace osdn::dist {
namespace supervisor_test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// One node; `elsewhere` is a failure that another node reports in the first attempt, once the file is there.
class FakePeers : public Peers {
 public:
  FakePeers(std::optional<Failure> elsewhere, std::string when)
      : elsewhere_(std::move(elsewhere)), when_(std::move(when)) {}
  void join(int attempt) override {
    attempt_ = attempt;
    failure_.reset();
  }
  std::optional<Meeting> meeting() override { return Meeting{.attempt = attempt_, .world_size = 2}; }
  void report(const Failure& failure) override { failure_ = failure; }
  std::optional<Failure> failure() override {
    return attempt_ == 0 && elsewhere_ && std::filesystem::exists(when_) ? elsewhere_ : failure_;
  }
  void report_done() override {}
  bool all_done() override { return true; }

 private:
  std::optional<Failure> elsewhere_, failure_;
  std::string when_;
  int attempt_ = 0;
};

struct Supervised {
  int exit_code = -1;
  std::string output;
  double seconds = 0;
};

/// Runs `scripts` (one a rank; $ATTEMPT, $RANK and $DIR are set) under a supervisor in a process of its own,
/// which signals may reach as they reach a launcher. `signals`: sent to it one after the other, each after so
/// many milliseconds, when all workers have written pid_$RANK.
struct Signal {
  int after_milliseconds;
  int number;
};
Supervised supervise_scripts(const std::vector<std::string>& scripts, SupervisorOptions options,
                             const std::string& directory, const std::vector<Signal>& signals = {},
                             std::optional<Failure> elsewhere = std::nullopt) {
  const std::string output = directory + "/output.txt";
  const auto start = Clock::now();
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    (void)!::freopen(output.c_str(), "w", stderr);
    ::signal(SIGHUP, SIG_DFL);  // whatever the tests run under
    int code = 99;
    try {
      const BlockedSignals blocked;
      FakePeers peers(std::move(elsewhere), directory + "/pid_0");
      code = static_cast<int>(supervise(peers, blocked, options, [&](const Meeting& meeting) {
        std::vector<Worker> workers;
        for (size_t rank = 0; rank < scripts.size(); ++rank)
          workers.push_back(
              {.rank = static_cast<int>(rank),
               .arguments = {"/bin/sh", "-c", scripts[rank]},
               .environment = {"PATH=/usr/bin:/bin", "DIR=" + directory, "RANK=" + std::to_string(rank),
                               "ATTEMPT=" + std::to_string(meeting.attempt)},
               .log_file = directory + "/" + log_name(static_cast<int>(rank))});
        return workers;
      }));
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "%s\n", failure.what());
    }
    ::_exit(code);
  }
  for (size_t rank = 0; rank < scripts.size() && !signals.empty(); ++rank)
    for (int i = 0; i < 4000 && !std::filesystem::exists(directory + "/pid_" + std::to_string(rank)); ++i)
      std::this_thread::sleep_for(milliseconds(5));
  for (const Signal& signal : signals) {
    std::this_thread::sleep_for(milliseconds(signal.after_milliseconds));
    ::kill(launcher, signal.number);
  }
  int status = 0;
  ::waitpid(launcher, &status, 0);
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .output = read_file(output),
          .seconds = std::chrono::duration<double>(Clock::now() - start).count()};
}

void check_says(const Supervised& result, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    INFO("looking for \"" << part << "\" in:\n" << result.output);
    CHECK(result.output.find(part) != std::string::npos);
  }
}

/// One that has ended and whom nobody has asked about yet does not count.
bool exists(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(") ");
  return end != std::string::npos && text[end + 2] != 'Z';
}

/// Waits until rank 0 listens.
const std::string kWhenPatient = "while [ ! -s $DIR/pid_0 ]; do sleep 0.02; done; ";

/// Ends after the signal as a training does, telling which one came.
const std::string kPatient =
    "trap 'echo TERM >> $DIR/got_$RANK; exit 143' TERM USR1 HUP; trap 'echo INT >> $DIR/got_$RANK; exit 130' "
    "INT;"
    "echo $$ > $DIR/pid_$RANK; while :; do sleep 0.02; done";

}  // namespace supervisor_test

TEST_CASE("workers that end in order end the job with 0", "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  const t::Supervised result =
      t::supervise_scripts({"exit 0", "sleep 0.3; exit 0"}, {.max_restarts = 3}, folder.path());
  CHECK(result.exit_code == 0);
  CHECK(result.output.empty());
}

TEST_CASE("a killed worker ends the others within the grace period, and all start again", "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  // Rank 0 is deaf to SIGTERM; in the second attempt both end well.
  const std::string deaf =
      "[ $ATTEMPT = 1 ] && exit 0; trap '' TERM; echo $$ > $DIR/pid_0; while :; do sleep 0.02; done";
  const std::string dies = "[ $ATTEMPT = 1 ] && exit 0; " + t::kWhenPatient + "kill -9 $$";
  const t::Supervised result = t::supervise_scripts(
      {deaf, dies}, {.max_restarts = 3, .grace = std::chrono::milliseconds(400)}, folder.path());
  INFO(result.output);
  CHECK(result.exit_code == 0);
  CHECK(result.seconds < 5);
  t::check_says(result, {"rank 1 (process ", "died of SIGKILL", "restart 1 of 3"});
  CHECK(!t::exists(std::stoi(read_file(folder.path() + "/pid_0"))));
}

TEST_CASE("restarts come to an end: the failure's exit code, how often it was tried and the last line",
          "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  const std::string fails =
      "echo run >> $DIR/runs; echo '2026-01-01 00:00:00 error step 7 went wrong' >> $DIR/log_rank_1.txt;"
      "echo '#1 0x123' >> $DIR/log_rank_1.txt; exit 5";
  const t::Supervised result = t::supervise_scripts({t::kPatient, fails}, {.max_restarts = 2}, folder.path());
  CHECK(result.exit_code == 5);
  CHECK(read_file(folder.path() + "/runs") == "run\nrun\nrun\n");
  t::check_says(result, {"rank 1 (process ", "ended with exit code 5; its last line: error step 7",
                         "error step 7 went wrong", "restart 2 of 2",
                         "no restart is left (distributed.max_restarts: 2)"});
}

TEST_CASE("what a restart cannot cure ends the job at once, with what the worker printed", "[supervisor]") {
  namespace t = supervisor_test;
  for (const int code : {2, 4}) {
    const TemporaryDirectory folder;
    const t::Supervised result = t::supervise_scripts(
        {t::kPatient,
         "echo run >> $DIR/runs; echo 'bad.yaml:3: no such key' >&2; exit " + std::to_string(code)},
        {.max_restarts = 3}, folder.path());
    CHECK(result.exit_code == code);
    CHECK(read_file(folder.path() + "/runs") == "run\n");
    t::check_says(result, {"its last line: bad.yaml:3: no such key", "starting again would not help"});
  }
}

TEST_CASE("the cause is named, not the ranks that lost their peer a moment later", "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  // Both are gone before the launcher looks.
  const t::Supervised result = t::supervise_scripts(
      {"while [ ! -e $DIR/go ]; do sleep 0.01; done; echo 'error connection closed by peer' >&2; exit 3",
       "touch $DIR/go; sleep 0.06; kill -SEGV $$"},
      {}, folder.path());
  CHECK(result.exit_code == 5);
  t::check_says(result, {"rank 1 (process ", "died of SIGSEGV"});
}

TEST_CASE("a stopped rank is named beside the one whose wait ran out", "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  const t::Supervised result = t::supervise_scripts({"while [ ! -e $DIR/go ]; do sleep 0.01; done; sleep "
                                                     "0.5; echo 'error all_reduce timed out' >&2; exit 3",
                                                     "touch $DIR/go; kill -STOP $$; exit 0"},
                                                    {.grace = std::chrono::milliseconds(200)}, folder.path());
  CHECK(result.exit_code == 3);
  t::check_says(result,
                {"rank 0 (process ", "all_reduce timed out", "; rank 1 (process ", "is stopped (SIGSTOP"});
}

TEST_CASE("a rank that does not end when the others have is ended", "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  const t::Supervised result = t::supervise_scripts(
      {"exit 0", t::kPatient}, {.follow = std::chrono::milliseconds(400)}, folder.path());
  CHECK(result.exit_code == 3);
  t::check_says(result, {"rank 1 (process ", "still runs 0.4 s after the others have ended"});
}

TEST_CASE("signals reach every worker, whose exit code the job takes, without a restart", "[supervisor]") {
  namespace t = supervisor_test;
  for (const auto& [number, code, told] : {std::tuple<int, int, std::string>{SIGTERM, 143, "TERM\n"},
                                           {SIGUSR1, 143, "TERM\n"},
                                           {SIGHUP, 143, "TERM\n"},
                                           {SIGINT, 130, "INT\n"}}) {
    const TemporaryDirectory folder;
    const t::Supervised result =
        t::supervise_scripts({t::kPatient, t::kPatient}, {.max_restarts = 3}, folder.path(), {{50, number}});
    INFO(result.output);
    CHECK(result.exit_code == code);
    for (const char* got : {"/got_0", "/got_1"}) CHECK(read_file(folder.path() + got) == told);
  }
}

TEST_CASE("a second signal ends workers that do not listen to the first", "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  const std::string deaf = "trap '' TERM; echo $$ > $DIR/pid_$RANK; while :; do sleep 0.02; done";
  const t::Supervised result =
      t::supervise_scripts({deaf, deaf}, {.max_restarts = 3, .grace = std::chrono::milliseconds(200)},
                           folder.path(), {{50, SIGTERM}, {300, SIGTERM}});
  INFO(result.output);
  CHECK(result.exit_code != 0);
  CHECK(result.seconds < 5);
  CHECK(result.output.find("restart 1") == std::string::npos);
}

TEST_CASE("a worker that a signal ends before it listens stops the job, not restarts it", "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  const t::Supervised result = t::supervise_scripts({t::kPatient, t::kWhenPatient + "kill -TERM $$; sleep 5"},
                                                    {.max_restarts = 3}, folder.path());
  CHECK(result.exit_code == 143);
  CHECK(read_file(folder.path() + "/got_0") == "TERM\n");
}

TEST_CASE("no worker outlives its launcher", "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  const t::Supervised result =
      t::supervise_scripts({t::kPatient, t::kPatient}, {}, folder.path(), {{50, SIGKILL}});
  CHECK(result.exit_code == 128 + SIGKILL);
  for (const char* file : {"/pid_0", "/pid_1"}) {
    const int process = std::stoi(read_file(folder.path() + file));
    for (int i = 0; i < 200 && t::exists(process); ++i) std::this_thread::sleep_for(t::milliseconds(5));
    CHECK(!t::exists(process));
  }
}

TEST_CASE("a failure on another node ends the workers of this one, and the job starts again",
          "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  const t::Supervised result = t::supervise_scripts(
      {"[ $ATTEMPT = 1 ] && exit 0; " + t::kPatient}, {.max_restarts = 1}, folder.path(), {},
      Failure{
          .code = ExitCode::kEnvironmentError, .reason = "rank 5 (process 1 on far) died", .curable = true});
  CHECK(result.exit_code == 0);
  CHECK(read_file(folder.path() + "/got_0") == "TERM\n");
  t::check_says(result, {"rank 5 (process 1 on far) died", "restart 1 of 1"});
}

TEST_CASE("a program that cannot be started is an error, not a hang", "[supervisor]") {
  namespace t = supervisor_test;
  const TemporaryDirectory folder;
  const t::Supervised result = t::supervise_scripts({"exec /no/such/program"}, {}, folder.path());
  CHECK(result.exit_code == 3);
  t::check_says(result, {"rank 0 (process ", "exit code 127"});
}

}  // namespace osdn::dist
