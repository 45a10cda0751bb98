#include <signal.h>

#include <algorithm>
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

TEST_CASE("whatever looks like a checkpoint and is none is named and passed over", "[resume]") {
  namespace fs = std::filesystem;
  const RunFolder folder;
  const std::vector<std::string> overrides = {"checkpoint.keep_last=4"};
  REQUIRE(folder.train(overrides).exit_code == 0);
  const std::string root = folder.run() + "/checkpoints";
  fs::copy(root + "/step_00000006", root + "/step_500.tmp", fs::copy_options::recursive);
  fs::copy(root + "/step_00000006", root + "/step_0300 copy", fs::copy_options::recursive);
  const std::string model = root + "/step_00000009/model.safetensors";
  fs::resize_file(model, fs::file_size(model) - 100);
  fs::remove(root + "/step_00000012/optimizer-0-of-1.safetensors");
  fs::create_directory(root + "/step_600");
  atomic_write(root + "/step_700", "a file");
  fs::remove(root + "/latest");
  fs::create_symlink("step_900", root + "/latest");
  const test::ProcessResult result = folder.train(overrides);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  test::check_mentions(
      result.err,
      {"step_500.tmp: not a checkpoint's name", "step_0300 copy: not a checkpoint's name",
       "step_00000009/model.safetensors: ", "truncated",
       "step_00000012/optimizer-0-of-1.safetensors: missing", "step_600/manifest.json: missing",
       "step_700: not a directory", "latest: a link to nothing", "resuming from " + root + "/step_00000006"});
  check_equals_straight_run(folder);
  for (const char* foreign : {"step_500.tmp", "step_0300 copy", "step_600", "step_700"})
    CHECK(fs::exists(root + "/" + foreign));
  CHECK(read_file(root + "/latest") == "step_00000012\n");
}

TEST_CASE("a run moved to another folder with its data goes on bit-exactly, with other data it is refused",
          "[resume]") {
  namespace fs = std::filesystem;
  const RunFolder folder;
  test::Process process = folder.start_training();
  wait_for_first_step(folder, std::chrono::seconds(60));
  process.signal(SIGTERM);
  process.wait();
  // The copy has its own shards, under other absolute paths; the old ones are gone.
  const RunFolder moved;
  fs::create_directory(moved.path() + "/runs");
  fs::copy(folder.run(), moved.run(), fs::copy_options::recursive);
  fs::remove(moved.path() + "/shards");
  fs::copy(test::prepared_folder() + "/shards", moved.path() + "/shards");
  fs::remove(folder.path() + "/shards");
  const test::ProcessResult result = moved.train();
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  check_equals_straight_run(moved);
  fs::copy_file(moved.path() + "/shards/valid-00000.h5", moved.path() + "/shards/train-00001.h5");
  const test::ProcessResult other = moved.train({"train.steps=13"});
  CHECK(other.exit_code == 2);
  test::check_mentions(other.err, {"data.train", "the shards differ", "run.name"});
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

TEST_CASE("keep_last 0 keeps every checkpoint and 1 the newest, beside files of others", "[resume]") {
  const RunFolder folder;
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder.run() + "/checkpoints"))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  };
  REQUIRE(folder.train({"checkpoint.keep_last=0"}).exit_code == 0);
  CHECK(names() == std::vector<std::string>{"latest", "step_00000003", "step_00000006", "step_00000009",
                                            "step_00000012"});
  atomic_write(folder.run() + "/checkpoints/notes.txt", "mine");
  REQUIRE(folder.train({"checkpoint.keep_last=1"}).exit_code == 0);
  CHECK(names() == std::vector<std::string>{"latest", "notes.txt", "step_00000012"});
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
