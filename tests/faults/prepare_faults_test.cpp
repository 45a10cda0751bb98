// `osdn prepare` whose every call that changes a file is disturbed in turn.
#include "base/json.h"
#include "data/prepare.h"
#include "tests/faults/support.h"
#include "tests/support/test.h"

namespace osdn::faults {
namespace prepare_faults_test {

class PrepareBench : public Bench {
 public:
  PrepareBench() {
    std::string lines;
    for (int i = 0; i < 60; ++i)
      lines += Json{{"text", fmt::format("Sentence {} of a small corpus.", i * 7919 % 1000)}}.dump() + "\n";
    atomic_write(root() + "/corpus.jsonl", lines);
  }
  std::string output() const { return work() + "/shards"; }
  Outcome prepare(const Plan& plan) const {
    return run(plan, [&] {
      config::Prepare settings;
      settings.input = {root() + "/corpus.jsonl"};
      settings.output = output();
      settings.validation_fraction = 0.2;
      settings.shard_tokens = 400;
      settings.workers = 1;  // one thread: the calls come in the same order every time
      settings.tokenizer.vocab_size = 300;
      data::prepare(settings, {});
      return ExitCode::kDone;
    });
  }
};

/// Everything but how long it took and who holds the lock.
std::map<std::string, std::string> lasting_files(const PrepareBench& bench) {
  std::map<std::string, std::string> files = files_below(bench.output());
  files.erase(".prepare.lock");
  if (files.count("prepare.json") != 0) {
    Json report = Json::parse(files["prepare.json"]);
    report.erase("seconds");
    files["prepare.json"] = report.dump();
  }
  return files;
}

void disturb(bool all) {
  const PrepareBench bench;
  const Outcome undisturbed = bench.prepare({});
  INFO(undisturbed.messages);
  REQUIRE(undisturbed.exit_code == 0);
  const std::map<std::string, std::string> expected = lasting_files(bench);
  REQUIRE(expected.count("train-00001.h5") == 1);
  const std::vector<std::string> calls = bench.calls();
  for (const std::string& broken : unsynced_names(calls)) {
    INFO(broken);
    CHECK(broken.empty());
  }
  for (const int64_t number : calls_to_disturb(calls, all)) {
    const std::string& call = calls[static_cast<size_t>(number) - 1];
    for (Plan plan : faults_of(call)) {
      INFO("call " << number << ": " << call << ", fault " << static_cast<int>(plan.action) << " error "
                   << plan.error);
      bench.clear();
      plan.at = number;
      const Outcome outcome = bench.prepare(plan);
      INFO(outcome.messages);
      if (plan.action == Action::kShort) {
        CHECK(outcome.exit_code == 0);
      } else if (plan.action == Action::kTorn || plan.action == Action::kKillAfter) {
        CHECK(outcome.exit_code == 128 + SIGKILL);
      } else {
        CHECK((outcome.exit_code == 0 || outcome.exit_code == 3));
        // A part that could not be removed goes with the folder of unfinished work.
        const bool tidying = call.rfind("remove ", 0) == 0 && outcome.exit_code == 0;
        CHECK((tidying || names_path_and_reason(outcome.messages, call, plan.error)));
      }
      // What has a final name is what an undisturbed run writes under it.
      for (const auto& [name, content] : lasting_files(bench))
        if (expected.count(name) != 0 && content != "directory") {
          INFO(name);
          CHECK((content == expected.at(name)));
        }
      const Outcome again = bench.prepare({});
      INFO(again.messages);
      CHECK(again.exit_code == 0);
      CHECK(differing_names(lasting_files(bench), expected) == "");
    }
  }
}

}  // namespace prepare_faults_test

TEST_CASE("a fault in a call of every sort leaves shards complete or absent", "[prepare_faults]") {
  prepare_faults_test::disturb(false);
}

TEST_CASE("a fault in any call leaves shards complete or absent", "[prepare_faults][slow]") {
  prepare_faults_test::disturb(true);
}

}  // namespace osdn::faults
