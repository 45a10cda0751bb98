#include <signal.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/integration/run_fixture.h"

namespace osdn {
namespace {

using test::model_bytes;
using test::RunFolder;
using test::timeless_metrics;

/// The undisturbed run that all others must equal; trained once.
const RunFolder& straight_run() {
  static const RunFolder folder;
  static const bool trained = [] {
    const test::ProcessResult result = folder.train();
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return true;
  }();
  static_cast<void>(trained);
  return folder;
}

void check_equals_straight_run(const RunFolder& folder) {
  CHECK(model_bytes(folder.run(), 12) == model_bytes(straight_run().run(), 12));
  CHECK(timeless_metrics(folder.run()) == timeless_metrics(straight_run().run()));
}

/// Until the run has recorded its first step.
void wait_for_first_step(const RunFolder& folder, std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const std::string path = folder.run() + "/metrics.jsonl";
  while (!std::filesystem::exists(path) || std::filesystem::file_size(path) == 0) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// Kills training at a random moment, again and again until it ends by itself.
void train_under_fire(const RunFolder& folder, uint32_t seed, int max_milliseconds) {
  std::mt19937 random(seed);
  for (int attempt = 0; attempt < 200; ++attempt) {
    test::Process process = folder.start_training();
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::milliseconds(1 + random() % static_cast<uint32_t>(max_milliseconds));
    while (process.running() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (process.running()) process.signal(SIGKILL);
    const test::ProcessResult result = process.wait();
    if (result.exit_code == 0) return;
    INFO(result.err);
    REQUIRE(result.exit_code == 128 + SIGKILL);
    // From now on every start gets a little further, so that the loop ends.
    max_milliseconds += 150;
  }
  FAIL("training never ended");
}

TEST_CASE("the same run twice gives the same bits", "[resume]") {
  const RunFolder again;
  REQUIRE(again.train().exit_code == 0);
  check_equals_straight_run(again);
}

TEST_CASE("a stop by SIGTERM checkpoints, exits 143, and the rest continues bit-exactly", "[resume]") {
  for (const auto& [signal, code] : {std::pair{SIGTERM, 143}, {SIGUSR1, 143}, {SIGINT, 130}}) {
    const RunFolder folder;
    test::Process process = folder.start_training();
    wait_for_first_step(folder, std::chrono::seconds(60));
    process.signal(signal);
    const test::ProcessResult result = process.wait();
    INFO(result.err);
    // On a very fast machine all steps may be done before the signal is seen; that too must be an orderly
    // end.
    CHECK((result.exit_code == code || result.exit_code == 0));
    const int64_t stopped_at = timeless_metrics(folder.run()).back()["step"].get<int64_t>();
    CHECK(std::filesystem::exists(folder.run() +
                                  fmt::format("/checkpoints/step_{:08d}/manifest.json", stopped_at)));
    REQUIRE(folder.train().exit_code == 0);
    check_equals_straight_run(folder);
  }
}

TEST_CASE("three runs of 5, 4 and 3 steps equal one of 12", "[resume]") {
  const RunFolder folder;
  // Raising train.steps would change the schedule: the stops come by signal instead, at steps that metrics
  // name.
  for (const int64_t stop : {5, 9}) {
    test::Process process = folder.start_training();
    const auto reached = [&] {
      if (!std::filesystem::exists(folder.run() + "/metrics.jsonl")) return false;
      const std::string text = read_file(folder.run() + "/metrics.jsonl");
      return text.find(fmt::format("\"step\":{},", stop)) != std::string::npos;
    };
    while (process.running() && !reached()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    process.signal(SIGTERM);
    process.wait();
  }
  REQUIRE(folder.train().exit_code == 0);
  check_equals_straight_run(folder);
}

TEST_CASE("kill -9 at random moments loses nothing and changes no bit", "[resume]") {
  const RunFolder folder;
  train_under_fire(folder, 1, 2500);
  check_equals_straight_run(folder);
}

TEST_CASE("kill -9 at random moments, five runs in a row", "[resume][slow]") {
  for (uint32_t seed = 2; seed < 7; ++seed) {
    const RunFolder folder;
    train_under_fire(folder, seed, 1500);
    check_equals_straight_run(folder);
  }
}

TEST_CASE("a damaged newest checkpoint is named and the one before it is used, bit-exactly", "[resume]") {
  const RunFolder folder;
  REQUIRE(folder.train({"train.steps=12"}).exit_code == 0);
  const std::string newest = folder.run() + "/checkpoints/step_00000012/model.safetensors";
  std::string bytes = read_file(newest);
  bytes[bytes.size() / 2] ^= 1;
  atomic_write(newest, bytes);
  const test::ProcessResult result = folder.train();
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  test::check_mentions(result.err, {"step_00000012", "model.safetensors"});
  check_equals_straight_run(folder);
}

TEST_CASE("another micro-batch gives the same losses within rounding and says that bits may differ",
          "[resume]") {
  const RunFolder folder;
  REQUIRE(folder.train({"train.micro_batch_sequences=2"}).exit_code == 0);
  const auto split = timeless_metrics(folder.run());
  const auto straight = timeless_metrics(straight_run().run());
  REQUIRE(split.size() == straight.size());
  for (size_t i = 0; i < split.size(); ++i)
    CHECK(split[i]["loss"].get<double>() == Approx(straight[i]["loss"].get<double>()).epsilon(1e-5));
}

TEST_CASE("raising train.steps extends a finished run", "[resume]") {
  const RunFolder folder;
  REQUIRE(folder.train({"train.steps=4"}).exit_code == 0);
  const test::ProcessResult done = folder.train({"train.steps=4"});
  CHECK(done.exit_code == 0);
  test::check_mentions(done.err, {"all 4 steps are done"});
  REQUIRE(folder.train({"train.steps=6"}).exit_code == 0);
  const auto metrics = timeless_metrics(folder.run());
  REQUIRE(metrics.size() == 6);
  for (size_t i = 0; i < metrics.size(); ++i) CHECK(metrics[i]["step"].get<size_t>() == i + 1);
  CHECK(metrics.back()["tokens"].get<int64_t>() == 6 * 512);
}

}  // namespace
}  // namespace osdn
