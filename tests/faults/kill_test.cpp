// Training that saves after every step and is killed at random moments, most of them while it saves.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "checkpoint/layout.h"
#include "checkpoint/verify.h"
#include "tests/faults/train_bench.h"

namespace osdn::faults {
namespace kill_test {

constexpr int64_t kSteps = 25;

config::Config config_of(const TrainBench& bench) {
  config::Config config = bench.config();
  // 25 MB a checkpoint, of an embedding that a step hardly touches: a save takes longer than a step.
  config.model.vocab_size = 16384;
  config.model.hidden_size = 64;
  config.model.num_heads = 2;
  config.model.head_dim = 32;
  config.train.steps = kSteps;
  config.checkpoint.keep_last = 2;
  config.checkpoint.keep_every_steps = 5;
  config.checkpoint.asynchronous = true;
  config.metrics.tensorboard = false;
  return config;
}

/// OSDN_TEST_KILLS sets how often; the default is what a test of the slow label has time for.
int num_kills() {
  const char* wanted = std::getenv("OSDN_TEST_KILLS");
  return wanted ? std::atoi(wanted) : 40;
}

bool is_saving(const TrainBench& bench) {
  const std::vector<std::string> names = checkpoint::list_names(bench.checkpoints());
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.rfind(".tmp-step_", 0) == 0; });
}

void sleep_for_microseconds(uint64_t count) { std::this_thread::sleep_for(std::chrono::microseconds(count)); }

bool has_ended(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == child;
}

struct Count {
  int kills = 0;
  int in_save = 0;
  int finished_runs = 0;
};

/// One start, killed at a random moment; false when it ended by itself.
bool start_and_kill(const TrainBench& bench, std::mt19937* random, Count* count) {
  const pid_t child = bench.start({}, [&] { return train::train(config_of(bench), {}, {}); });
  if ((*random)() % 4 == 0) {
    sleep_for_microseconds((*random)() % 300'000);  // anywhere, the start included
  } else {
    // Soon after the first, second or third save of this start has begun.
    for (uint32_t saves = (*random)() % 3 + 1; saves > 0 && !has_ended(child); --saves) {
      while (!has_ended(child) && is_saving(bench)) sleep_for_microseconds(100);
      while (!has_ended(child) && !is_saving(bench)) sleep_for_microseconds(100);
    }
    sleep_for_microseconds((*random)() % 60'000);
  }
  ::kill(child, SIGKILL);
  const Outcome outcome = bench.wait(child);
  INFO(outcome.messages);
  if (outcome.exit_code == 0) return false;
  REQUIRE(outcome.exit_code == 128 + SIGKILL);
  ++count->kills;
  if (is_saving(bench)) ++count->in_save;
  return true;
}

}  // namespace kill_test

TEST_CASE("kill -9 at random moments of training that saves every step loses nothing and changes no bit",
          "[kill][slow]") {
  const TrainBench bench;
  const auto finish = [&] {
    return bench.run({}, [&] { return train::train(kill_test::config_of(bench), {}, {}); });
  };
  REQUIRE(finish().exit_code == 0);
  const std::map<std::string, std::string> expected = lasting_files(bench);

  std::mt19937 random(40);
  kill_test::Count count;
  const int wanted = kill_test::num_kills();
  while (count.kills < wanted) {
    bench.clear();
    int64_t newest = 0;
    while (count.kills < wanted && kill_test::start_and_kill(bench, &random, &count)) {
      // Whatever has a final name is whole, and the newest never goes back.
      int64_t found = 0;
      for (const checkpoint::StepEntry& entry : checkpoint::list_steps(bench.checkpoints())) {
        const checkpoint::Verdict verdict = checkpoint::verify(bench.checkpoints() + "/" + entry.name);
        INFO(verdict.problem);
        CHECK(verdict.intact);
        if (!verdict.weights_only) found = std::max(found, entry.step);
      }
      CHECK(found >= newest);
      newest = found;
    }
    const Outcome last = finish();
    INFO(last.messages);
    REQUIRE(last.exit_code == 0);
    CHECK(differing_names(lasting_files(bench), expected) == "");
    ++count.finished_runs;
  }
  std::printf("%d kills, %d of them while a checkpoint was being written, %d runs finished\n", count.kills,
              count.in_save, count.finished_runs);
  CHECK(count.in_save >= wanted / 8);
}

}  // namespace osdn::faults
