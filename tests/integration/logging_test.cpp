// What log.txt and metrics.jsonl hold after the program died, and how it ends.
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/integration/run_fixture.h"

namespace osdn {
namespace logging_test {

using test::check_mentions;
using test::RunFolder;

/// Steps in metrics.jsonl; a line that is not whole does not count.
int64_t steps_written(const RunFolder& folder) {
  const std::string path = folder.run() + "/metrics.jsonl";
  if (!std::filesystem::exists(path)) return 0;
  const std::string text = read_file(path);
  return static_cast<int64_t>(std::count(text.begin(), text.end(), '\n'));
}

/// A run that does not end by itself, signalled after `step`.
test::ProcessResult signalled(const RunFolder& folder, int signal, int64_t step) {
  test::Process process = folder.start_training({"train.steps=100000"});
  while (process.running() && steps_written(folder) < step)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  process.signal(signal);
  return process.wait();
}

std::string log_of(const RunFolder& folder) { return read_file(folder.run() + "/log.txt"); }

}  // namespace logging_test

TEST_CASE("a crash or a kill loses no finished step and no line of the log", "[logging]") {
  namespace t = logging_test;
  for (const auto& [signal, told] : {std::pair<int, std::string>{SIGSEGV, "died of SIGSEGV"},
                                     {SIGABRT, "died of SIGABRT"},
                                     {SIGKILL, "small: 1 of 100000"}}) {
    const t::RunFolder folder;
    const test::ProcessResult result = t::signalled(folder, signal, 7);
    INFO(result.err);
    CHECK(result.exit_code == 128 + signal);
    CHECK(t::steps_written(folder) >= 7);
    t::check_mentions(t::log_of(folder), {"small: 1 of 100000", told});
    t::check_mentions(result.err, {told});
  }
}

TEST_CASE("Ctrl-C and an error end with their code and a last line in the log", "[logging]") {
  namespace t = logging_test;
  const t::RunFolder folder;
  const test::ProcessResult interrupted = t::signalled(folder, SIGINT, 7);
  CHECK(interrupted.exit_code == 130);
  t::check_mentions(t::log_of(folder), {"stopped by a signal after step"});

  // A shard that is damaged beyond its header: read in the loader's thread, some steps into the run.
  const t::RunFolder damaged;
  std::filesystem::remove(damaged.path() + "/shards");
  std::filesystem::copy(test::prepared_folder() + "/shards", damaged.path() + "/shards");
  const std::string shard = damaged.path() + "/shards/train-00000.h5";
  std::string bytes = read_file(shard);
  for (size_t i = bytes.size() / 2; i < bytes.size() / 2 + 20'000; ++i) bytes[i] = '\xff';
  atomic_write(shard, bytes);
  const test::ProcessResult failed =
      damaged.train({"train.steps=100000", "checkpoint.every_steps=1", "checkpoint.asynchronous=false"});
  INFO(failed.err);
  CHECK(failed.exit_code == 4);
  t::check_mentions(t::log_of(damaged), {"small: ends after step", "newest checkpoint", "train-00000.h5"});
}

TEST_CASE("a reader of the log that goes away does not end the training", "[logging]") {
  namespace t = logging_test;
  const t::RunFolder folder;
  const std::string line = std::string(OSDN_BINARY) + " train small.yaml 2>&1 | head -n 1";
  test::Process shell({"/bin/sh", "-c", line}, folder.path());
  shell.wait();
  // The pipe ends with its reader; the training may still be at it.
  for (int i = 0; i < 12000 && !std::filesystem::exists(folder.run() + "/checkpoints/step_00000012"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(t::steps_written(folder) == 12);
  CHECK(std::filesystem::exists(folder.run() + "/checkpoints/step_00000012"));
}

}  // namespace osdn
