// Training whose every call that changes a file is disturbed in turn, in forked children: what was complete
// stays intact, the message names path and reason, and the same command afterwards ends with the bytes of an
// undisturbed run.
#include "checkpoint/layout.h"
#include "checkpoint/verify.h"
#include "tests/faults/train_bench.h"

namespace osdn::faults {
namespace train_faults_test {

/// Step of the newest checkpoint that the first `count` calls have put in place.
int64_t newest_published(const std::vector<std::string>& calls, int64_t count) {
  int64_t newest = 0;
  for (int64_t i = 0; i < count && i < static_cast<int64_t>(calls.size()); ++i) {
    const std::string& call = calls[static_cast<size_t>(i)];
    const size_t arrow = call.find(" -> ");
    if (call.rfind("rename ", 0) != 0 || call.find(".tmp-", arrow) != std::string::npos) continue;
    if (const auto step = checkpoint::parse_step_name(checkpoint::base_name(call.substr(arrow + 4))))
      newest = std::max(newest, *step);
  }
  return newest;
}

/// Every checkpoint under a final name is whole; returns the newest that can be resumed from.
int64_t check_checkpoints(const TrainBench& bench) {
  int64_t newest = 0;
  for (const checkpoint::StepEntry& entry : checkpoint::list_steps(bench.checkpoints())) {
    const checkpoint::Verdict verdict = checkpoint::verify(bench.checkpoints() + "/" + entry.name);
    INFO(verdict.problem);
    CHECK(verdict.intact);
    if (!verdict.weights_only) newest = std::max(newest, entry.step);
  }
  return newest;
}

void check_outcome(const Outcome& outcome, const Plan& plan, const std::string& call) {
  INFO(outcome.messages);
  switch (plan.action) {
    case Action::kShort:
      CHECK(outcome.exit_code == 0);
      break;
    case Action::kTorn:
    case Action::kKillAfter:
      CHECK(outcome.exit_code == 128 + SIGKILL);
      break;
    default:
      // Training ends, or goes on where only the log, `latest` or the removal of an older checkpoint failed.
      CHECK((outcome.exit_code == 0 || outcome.exit_code == 3));
      CHECK(names_path_and_reason(outcome.messages, call, plan.error));
  }
}

/// Disturbs the calls of a run that begins in the state that `prepare` makes.
void disturb(bool all, const std::function<void(const TrainBench&)>& prepare) {
  const TrainBench bench;
  REQUIRE(bench.train({}).exit_code == 0);
  const std::map<std::string, std::string> expected = lasting_files(bench);
  CHECK(unsynced_names(bench.calls()).empty());

  bench.clear();
  prepare(bench);
  const int64_t present = check_checkpoints(bench);
  std::filesystem::remove(bench.record());
  const Outcome undisturbed = bench.train({});
  INFO(undisturbed.messages);
  REQUIRE(undisturbed.exit_code == 0);
  const std::vector<std::string> calls = bench.calls();
  for (const std::string& broken : unsynced_names(calls)) {
    INFO(broken);
    CHECK(broken.empty());
  }
  CHECK(differing_names(lasting_files(bench), expected) == "");
  for (const int64_t number : calls_to_disturb(calls, all)) {
    const std::string& call = calls[static_cast<size_t>(number) - 1];
    for (Plan plan : faults_of(call)) {
      INFO("call " << number << ": " << call << ", fault " << static_cast<int>(plan.action) << " error "
                   << plan.error);
      bench.clear();
      prepare(bench);
      plan.at = number;
      const Outcome outcome = bench.train(plan);
      check_outcome(outcome, plan, call);
      // A failed sync of the folder comes after the name: one more may be there, never one less.
      CHECK(check_checkpoints(bench) >= std::max(present, newest_published(calls, number - 1)));
      const Outcome again = bench.train({});
      INFO(again.messages);
      CHECK(again.exit_code == 0);
      CHECK(differing_names(lasting_files(bench), expected) == "");
    }
  }
}

void nothing(const TrainBench&) {}

/// A run that was killed in its third step, with a line in its metrics that is newer than its checkpoint.
void killed_run(const TrainBench& bench) {
  Plan plan;
  plan.match = "write " + bench.run_folder() + "/metrics.jsonl";
  plan.at = 3;
  plan.action = Action::kTorn;
  const Outcome outcome = bench.train(plan);
  INFO(outcome.messages);
  REQUIRE(outcome.exit_code == 128 + SIGKILL);
}

}  // namespace train_faults_test

TEST_CASE("a fault in a call of every sort loses nothing of a training run", "[train_faults]") {
  train_faults_test::disturb(false, train_faults_test::nothing);
}

TEST_CASE("a fault in a call of every sort loses nothing of a resumed run", "[train_faults]") {
  train_faults_test::disturb(false, train_faults_test::killed_run);
}

TEST_CASE("a fault in any call loses nothing of a training run", "[train_faults][slow]") {
  train_faults_test::disturb(true, train_faults_test::nothing);
}

TEST_CASE("a fault in any call loses nothing of a resumed run", "[train_faults][slow]") {
  train_faults_test::disturb(true, train_faults_test::killed_run);
}

}  // namespace osdn::faults
