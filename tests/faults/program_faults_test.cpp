// The program itself on media that fail: preloaded faults, directories that vanish, two processes on one run.
#include <signal.h>

#include <chrono>
#include <thread>

#include "checkpoint/verify.h"
#include "tests/faults/support.h"
#include "tests/integration/run_fixture.h"

namespace osdn::faults {
namespace program_faults_test {

using test::check_mentions;
using test::ProcessResult;
using test::RunFolder;
using Environment = std::vector<std::pair<std::string, std::string>>;

/// Disturbs call number `at` of those whose line contains `match`, below the folder of the runs.
Environment fault(const RunFolder& folder, const std::string& match, int64_t at, const std::string& action) {
  const std::string under = std::filesystem::canonical(folder.path()).string() + "/runs";
  std::filesystem::create_directories(under);
  return {{"LD_PRELOAD", OSDN_FAULT_PRELOAD},
          {"OSDN_FAULT_UNDER", under},
          {"OSDN_FAULT_MATCH", match},
          {"OSDN_FAULT_AT", std::to_string(at)},
          {"OSDN_FAULT_ACTION", action}};
}

ProcessResult train(const RunFolder& folder, const Environment& environment) {
  return test::run_osdn(folder.train_arguments(), folder.path(), environment);
}

test::Process start(const RunFolder& folder, const std::string& output, const Environment& environment) {
  return test::Process(
      {OSDN_BINARY, "train", folder.path() + "/small.yaml", "--set",
       "run.directory=" + folder.path() + "/runs", "--set",
       "data.train=[" + folder.path() + "/shards/train-*.h5]", "--set",
       "data.validation=[" + folder.path() + "/shards/valid-*.h5]", "--set",
       "data.tokenizer=" + folder.path() + "/shards/tokenizer.model", "--set", "train.steps=100000"},
      output, environment);
}

void wait_for_step(const RunFolder& folder, test::Process* process) {
  const std::string path = folder.run() + "/metrics.jsonl";
  while (process->running() && (!std::filesystem::exists(path) || std::filesystem::file_size(path) == 0))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  REQUIRE(process->running());
}

struct Finished {
  std::string model;
  std::vector<Json> metrics;
  bool operator==(const Finished& other) const { return model == other.model && metrics == other.metrics; }
};

Finished finished(const RunFolder& folder) {
  return {.model = test::model_bytes(folder.run(), 12), .metrics = test::timeless_metrics(folder.run())};
}

const Finished& undisturbed() {
  static const Finished result = [] {
    const RunFolder folder;
    REQUIRE(folder.train().exit_code == 0);
    return finished(folder);
  }();
  return result;
}

}  // namespace program_faults_test

TEST_CASE("a disk that fills up while a checkpoint is written ends the run with path, size and reason",
          "[program_faults]") {
  namespace t = program_faults_test;
  for (const auto& [action, reason] :
       {std::pair<std::string, std::string>{"ENOSPC", "No space left on device"},
        {"EDQUOT", "Disk quota exceeded"}}) {
    const t::RunFolder folder;
    const t::ProcessResult full = t::train(
        folder, t::fault(folder, "write " + folder.run() + "/checkpoints/.tmp-step_00000006", 3, action));
    INFO(full.err);
    CHECK(full.exit_code == 3);
    const std::vector<std::string> told = {"checkpoint of step 6 was not written (",
                                           " bytes)",
                                           reason,
                                           folder.run() + "/checkpoints/.tmp-step_00000006",
                                           "complete checkpoints are untouched",
                                           "the newest checkpoint is of step 3"};
    t::check_mentions(full.err, told);
    t::check_mentions(read_file(folder.run() + "/log.txt"), told);
    CHECK(checkpoint::verify(folder.run() + "/checkpoints/step_00000003").intact);
    CHECK(!std::filesystem::exists(folder.run() + "/checkpoints/step_00000006"));
    const t::ProcessResult again = folder.train();
    INFO(again.err);
    CHECK(again.exit_code == 0);
    CHECK(t::finished(folder) == t::undisturbed());
  }
}

TEST_CASE("a killed program goes on bit-exactly from what was complete", "[program_faults]") {
  namespace t = program_faults_test;
  for (const auto& [match, at, action] :
       {std::tuple<std::string, int64_t, std::string>{".tmp-step_00000006", 5, "torn"},
        {"/step_00000006\n", 1, "kill"},
        {"/latest\n", 2, "kill"},
        {"remove ", 2, "kill"}}) {
    const t::RunFolder folder;
    const t::ProcessResult killed = t::train(folder, t::fault(folder, match, at, action));
    INFO(match << killed.err);
    CHECK(killed.exit_code == 128 + SIGKILL);
    const t::ProcessResult again = folder.train();
    INFO(again.err);
    CHECK(again.exit_code == 0);
    CHECK(t::finished(folder) == t::undisturbed());
    for (const auto& [name, content] : files_below(folder.run()))
      CHECK(name.find(".tmp-") == std::string::npos);
  }
}

TEST_CASE("a write-protected folder is told before training starts", "[program_faults]") {
  namespace t = program_faults_test;
  const t::RunFolder folder;
  for (const char* match : {"", "small/metrics.jsonl", "small/checkpoints", "small/config.yaml"}) {
    const t::ProcessResult refused = t::train(folder, t::fault(folder, match, 1, "EROFS"));
    INFO(match << refused.err);
    CHECK(refused.exit_code == 3);
    t::check_mentions(refused.err, {folder.path() + "/runs/small", "Read-only file system"});
    CHECK((!std::filesystem::exists(folder.run() + "/metrics.jsonl") ||
           std::filesystem::file_size(folder.run() + "/metrics.jsonl") == 0));
  }
  CHECK(folder.train().exit_code == 0);
  CHECK(t::finished(folder) == t::undisturbed());
}

TEST_CASE("a run whose folder vanishes ends and leaves what was complete", "[program_faults]") {
  namespace t = program_faults_test;
  const t::RunFolder folder;
  const TemporaryDirectory output;
  test::Process process = t::start(folder, output.path(), {});
  while (process.running() && !std::filesystem::exists(folder.run() + "/checkpoints/latest"))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const std::string gone = folder.path() + "/runs/gone";
  std::filesystem::rename(folder.run(), gone);
  const t::ProcessResult result = process.wait();
  INFO(result.err);
  CHECK(result.exit_code == 3);
  t::check_mentions(result.err, {folder.run(), "ends after step"});
  CHECK(!std::filesystem::exists(folder.run()));
  std::string latest = read_file(gone + "/checkpoints/latest");
  latest.pop_back();
  CHECK(checkpoint::verify(gone + "/checkpoints/" + latest).intact);
}

TEST_CASE("a second process on a run is refused by host and process, and may start after a kill",
          "[program_faults]") {
  namespace t = program_faults_test;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  // With the kernel's locks, and on a file system that has none.
  for (const bool locks : {true, false}) {
    const t::RunFolder folder;
    const t::Environment environment =
        locks ? t::Environment{} : t::fault(folder, "lock " + folder.run() + "/lock", 1, "ENOLCK");
    const TemporaryDirectory output;
    test::Process first = t::start(folder, output.path(), environment);
    t::wait_for_step(folder, &first);
    const t::ProcessResult second = t::train(folder, environment);
    INFO(second.err);
    CHECK(second.exit_code == 2);
    t::check_mentions(second.err, {"runs/small", fmt::format("in use by process {} on {}", first.id(), host),
                                   "choose another run.name"});
    if (!locks) t::check_mentions(second.err, {"keeps no locks", "remove " + folder.run() + "/lock"});
    first.signal(SIGKILL);
    first.wait();
    const t::ProcessResult third = t::train(folder, environment);
    INFO(third.err);
    CHECK(third.exit_code == 0);
    if (locks) continue;
    // Another host's process cannot be asked for: its name counts until somebody removes the file.
    atomic_write(folder.run() + "/lock", "process 5 on elsewhere");
    const t::ProcessResult fourth = t::train(folder, environment);
    CHECK(fourth.exit_code == 2);
    t::check_mentions(fourth.err, {"process 5 on elsewhere", "if that process has ended, remove"});
    std::filesystem::remove(folder.run() + "/lock");
    CHECK(t::train(folder, environment).exit_code == 0);
  }
}

}  // namespace osdn::faults
