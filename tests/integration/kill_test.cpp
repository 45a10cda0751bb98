// Training that saves after every step and is killed at random moments, most of them while it saves.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/integration/run_fixture.h"

namespace osdn {
namespace kill_test {

using test::RunFolder;
constexpr int64_t kSteps = 40;

/// Large enough that a save (35 MB) takes about as long as a step.
std::vector<std::string> overrides() {
  return {"model.hidden_size=256",     "model.num_layers=4",          "model.num_heads=4",
          "model.head_dim=64",         "model.intermediate_size=512", "checkpoint.every_steps=1",
          "evaluation.every_steps=20", "metrics.tensorboard=false",   fmt::format("train.steps={}", kSteps)};
}

/// `OSDN_TEST_KILLS` sets how often; the default is what a test of the slow label has time for.
int num_kills() {
  const char* wanted = std::getenv("OSDN_TEST_KILLS");
  return wanted ? std::atoi(wanted) : 40;
}

bool is_saving(const RunFolder& folder) {
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(folder.run() + "/checkpoints", failure), end;
       !failure && entry != end; entry.increment(failure))
    if (entry->path().filename().string().rfind(".tmp-step_", 0) == 0) return true;
  return false;
}

void sleep_for_microseconds(uint64_t count) { std::this_thread::sleep_for(std::chrono::microseconds(count)); }

struct Count {
  int kills = 0;
  int in_save = 0;
  int finished_runs = 0;
};

/// One start, killed at a random moment; false when it ended by itself.
bool start_and_kill(const RunFolder& folder, std::mt19937* random, Count* count) {
  test::Process process = folder.start_training(overrides());
  if ((*random)() % 4 == 0) {
    sleep_for_microseconds((*random)() % 1'500'000);  // anywhere, the start included
  } else {
    // Soon after the first, second, ... save of this start has begun.
    for (uint32_t saves = (*random)() % 3 + 1; saves > 0 && process.running(); --saves) {
      while (process.running() && is_saving(folder)) sleep_for_microseconds(200);
      while (process.running() && !is_saving(folder)) sleep_for_microseconds(200);
    }
    sleep_for_microseconds((*random)() % 100'000);
  }
  if (process.running()) process.signal(SIGKILL);
  const test::ProcessResult result = process.wait();
  INFO(result.err);
  if (result.exit_code == 0) return false;
  REQUIRE(result.exit_code == 128 + SIGKILL);
  ++count->kills;
  if (is_saving(folder)) ++count->in_save;
  return true;
}

}  // namespace kill_test

TEST_CASE("kill -9 at random moments of training that saves every step loses nothing and changes no bit",
          "[kill][slow]") {
  const test::RunFolder straight;
  REQUIRE(straight.train(kill_test::overrides()).exit_code == 0);
  const std::string model = test::model_bytes(straight.run(), kill_test::kSteps);
  const std::vector<Json> metrics = test::timeless_metrics(straight.run());

  std::mt19937 random(40);
  kill_test::Count count;
  const int wanted = kill_test::num_kills();
  while (count.kills < wanted) {
    const test::RunFolder folder;
    while (count.kills < wanted && kill_test::start_and_kill(folder, &random, &count)) {
    }
    const test::ProcessResult last = folder.train(kill_test::overrides());
    INFO(last.err);
    REQUIRE(last.exit_code == 0);
    CHECK(test::model_bytes(folder.run(), kill_test::kSteps) == model);
    CHECK(test::timeless_metrics(folder.run()) == metrics);
    ++count.finished_runs;
  }
  std::printf("%d kills, %d of them while a checkpoint was being written, %d runs finished\n", count.kills,
              count.in_save, count.finished_runs);
  CHECK(count.in_save >= wanted / 8);
}

}  // namespace osdn
