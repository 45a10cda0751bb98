// Training whose every call that changes a file is disturbed in turn, in forked children: what was complete
// stays intact, the message names path and reason, and the same command afterwards ends with the bytes of an
// undisturbed run.
#include <array>

#include "base/json.h"
#include "checkpoint/layout.h"
#include "checkpoint/verify.h"
#include "data/shard.h"
#include "tests/faults/support.h"
#include "tests/support/test.h"
#include "train/trainer.h"

namespace osdn::faults {
namespace train_faults_test {

constexpr int64_t kVocab = 32;
constexpr int64_t kSteps = 3;

class TrainBench : public Bench {
 public:
  TrainBench() {
    // Forked children of a process with worker threads would wait for threads that they do not have.
    at::set_num_threads(1);
    for (const char* name : {"train", "valid"}) {
      data::ShardWriter writer(fmt::format("{}/{}-00000.h5", root(), name),
                               {.tokenizer_digest = "none", .vocab_size = kVocab, .source_names = {"test"}});
      std::vector<int32_t> tokens = {1};
      for (int i = 0; i < 200; ++i) tokens.push_back((tokens.back() * 5 + 7) % static_cast<int32_t>(kVocab));
      writer.add_document(tokens, 200);
      writer.finish();
    }
  }

  Outcome train(const Plan& plan, int64_t steps = kSteps) const {
    return run(plan, [&] { return osdn::train::train(config(steps), {}); });
  }
  std::string run_folder() const { return work() + "/runs/small"; }
  std::string checkpoints() const { return run_folder() + "/checkpoints"; }

 private:
  config::Config config(int64_t steps) const {
    config::Config made;
    made.run.name = "small";
    made.run.directory = work() + "/runs";
    made.run.device = config::Device::kCpu;
    made.model.vocab_size = kVocab;
    made.model.hidden_size = 8;
    made.model.num_layers = 1;
    made.model.num_heads = 1;
    made.model.head_dim = 8;
    made.model.intermediate_size = 8;
    made.model.osdn = config::Osdn{};
    made.data.train = {{.path = root() + "/train-*.h5"}};
    made.data.validation = {root() + "/valid-*.h5"};
    made.data.sequence_length = 16;
    made.optimizer.warmup_steps = 1;
    made.optimizer.schedule = config::Schedule::kConstant;
    made.train.steps = steps;
    made.train.global_batch_tokens = 32;
    made.train.micro_batch_sequences = 2;
    made.train.precision = config::Precision::kFloat32;
    // Every way that a checkpoint can go is taken: 1 is removed, 2 is reduced to its weights, 3 stays whole.
    made.checkpoint.every_steps = 1;
    made.checkpoint.keep_last = 1;
    made.checkpoint.keep_every_steps = 2;
    made.checkpoint.asynchronous = false;
    made.evaluation = {.every_steps = 2, .sequences = 2};
    return made;
  }
};

/// What must be the same after every disturbed and repeated run: all but times, the log and event files.
std::map<std::string, std::string> lasting_files(const TrainBench& bench) {
  std::map<std::string, std::string> lasting;
  for (const auto& [name, content] : files_below(bench.run_folder())) {
    if (name == "log.txt" || name == "environment.json" || name.rfind("tensorboard/", 0) == 0) {
      lasting[name.substr(0, name.find('/'))] = "exists";
      continue;
    }
    lasting[name] = content;
    if (name != "metrics.jsonl") continue;
    std::string& metrics = lasting[name] = "";
    std::istringstream lines(content);
    for (std::string line; std::getline(lines, line);) {
      Json record = Json::parse(line);
      for (const char* field : {"tokens_per_second", "tokens_per_second_per_gpu", "step_milliseconds",
                                "data_wait_milliseconds", "memory_gib"})
        record.erase(field);
      metrics += record.dump() + "\n";
    }
  }
  return lasting;
}

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
