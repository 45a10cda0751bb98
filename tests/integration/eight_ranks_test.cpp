// Jobs of eight processes over Gloo, as on a host with eight GPUs: the same run as with fewer, whatever
// happens to them.
#include <algorithm>

#include "data/loader.h"
#include "tests/integration/launched.h"

namespace osdn {
namespace eight_ranks_test {

using test::RunFolder;
using test::timeless_metrics;

std::vector<std::string> processes(int number) { return {"--processes", std::to_string(number)}; }

/// One sequence a rank and micro-batch of eight, so that sums are taken over as many parts on any number.
std::vector<std::string> share(std::vector<std::string> overrides = {}) {
  overrides.emplace_back("train.micro_batch_sequences=1");
  return overrides;
}

void check_done(const test::ProcessResult& result) {
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
}

/// Losses, norms and residuals of every step, within the rounding of fp32 sums in another order.
void check_same_curve(const std::vector<Json>& found, const std::vector<Json>& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(found[i]["epoch"] == expected[i]["epoch"]);
    CHECK(found[i]["tokens"] == expected[i]["tokens"]);
    for (const char* field : {"loss", "grad_norm", "q_geo", "d_mean"}) {
      INFO(field);
      REQUIRE(found[i].contains(field) == expected[i].contains(field));
      if (found[i].contains(field))
        CHECK(found[i][field].get<double>() == Approx(expected[i][field].get<double>()).epsilon(1e-4));
    }
  }
}

/// Beginnings of the windows that so many ranks take in so many steps of a run of 8 x 256 tokens a step that
/// has consumed `consumed` samples.
std::vector<std::vector<int32_t>> windows_seen(const std::string& shards, int64_t ranks, int64_t steps,
                                               int64_t consumed) {
  std::vector<std::vector<int32_t>> seen;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    data::Loader loader({{.path = shards}}, {.sequence_length = 256,
                                             .seed = 7,
                                             .global_batch_sequences = 8,
                                             .micro_batch_sequences = 1,
                                             .rank = rank,
                                             .world_size = ranks,
                                             .samples_consumed = consumed});
    for (int64_t i = 0; i < steps * 8 / ranks; ++i) seen.push_back(loader.next().tokens);
  }
  return seen;
}

}  // namespace eight_ranks_test

TEST_CASE("the same global batch gives the same curve on 1, 2, 4 and 8 processes", "[eight_ranks][slow]") {
  namespace t = eight_ranks_test;
  const t::RunFolder alone;
  t::check_done(alone.train(t::share()));
  const std::vector<Json> expected = t::timeless_metrics(alone.run());
  REQUIRE(expected.size() == 12);
  for (const int number : {2, 4, 8}) {
    const t::RunFolder folder;
    t::check_done(test::start_two(folder, t::share(), t::processes(number))->wait());
    INFO(number << " processes");
    t::check_same_curve(t::timeless_metrics(folder.run()), expected);
    CHECK(read_json(folder.run() + "/environment.json")["world_size"].get<int>() == number);
    for (int rank = 1; rank < number; ++rank)
      CHECK(std::filesystem::file_size(folder.run() + fmt::format("/log_rank_{}.txt", rank)) > 0);
  }
}

TEST_CASE(
    "of eight ranks one is killed: all start again by themselves and end with the bits of an undisturbed job",
    "[eight_ranks][slow]") {
  namespace t = eight_ranks_test;
  const t::RunFolder straight;
  t::check_done(test::start_two(straight, t::share(), t::processes(8))->wait());
  // The last rank between two checkpoints, and rank 0, who writes.
  for (const int victim : {7, 0}) {
    const t::RunFolder disturbed;
    const auto job = test::start_two(disturbed, t::share(), t::processes(8));
    const pid_t process = test::worker_of(job->id(), victim);
    REQUIRE(process > 0);
    REQUIRE(test::wait_for_step(*job, disturbed.run(), 5));
    ::kill(process, SIGKILL);
    const test::ProcessResult result = job->wait();
    t::check_done(result);
    test::check_mentions(result.err, {fmt::format("rank {} (process {})", victim, process), "died of SIGKILL",
                                      "restart 1 of 3", "resuming from"});
    CHECK(t::timeless_metrics(disturbed.run()) == t::timeless_metrics(straight.run()));
    const std::string checkpoint = "/checkpoints/" + test::step_name(12);
    CHECK(read_file(disturbed.run() + checkpoint + "/model.safetensors") ==
          read_file(straight.run() + checkpoint + "/model.safetensors"));
    for (int rank = 0; rank < 8; ++rank) {
      const std::string moments = checkpoint + fmt::format("/optimizer-{}-of-8.safetensors", rank);
      CHECK(read_file(disturbed.run() + moments) == read_file(straight.run() + moments));
    }
  }
}

TEST_CASE(
    "eight ranks are stopped and two go on: every sample of an epoch once, and the curve of one process",
    "[eight_ranks][slow]") {
  namespace t = eight_ranks_test;
  // 76 windows of 256 tokens: the epoch ends within the tenth step.
  const std::vector<std::string> small = t::share(
      {"data.train=[shards/valid-*.h5]", "data.sequence_length=256", "train.global_batch_tokens=2048",
       "train.steps=14", "checkpoint.every_steps=1000", "evaluation.every_steps=1000"});
  const t::RunFolder alone;
  t::check_done(alone.train(small));
  const std::vector<Json> expected = t::timeless_metrics(alone.run());
  REQUIRE(expected.size() == 14);
  CHECK(expected.front()["epoch"].get<int>() == 0);
  CHECK(expected.back()["epoch"].get<int>() == 1);

  const t::RunFolder folder;
  const auto eight = test::start_two(folder, small, t::processes(8));
  REQUIRE(test::wait_for_step(*eight, folder.run(), 3));
  ::kill(test::worker_of(eight->id(), 5), SIGTERM);
  const test::ProcessResult stopped = eight->wait();
  INFO(stopped.err);
  REQUIRE(stopped.exit_code == 143);
  const std::vector<std::string> saved = test::checkpoints_of(folder.run());
  REQUIRE(saved.size() == 1);
  const Json state = read_json(folder.run() + "/checkpoints/" + saved.front() + "/state.json");
  const auto steps = state["step"].get<int64_t>();
  const auto consumed = state["samples_consumed"].get<int64_t>();
  CHECK(consumed == 8 * steps);
  REQUIRE(consumed < 72);
  t::check_done(test::start_two(folder, small, t::processes(2))->wait());
  t::check_same_curve(t::timeless_metrics(folder.run()), expected);

  // What the eight took, then the two, by the position that the checkpoint gave them: nine steps are 72 of 76
  // windows, and the tenth begins with the last four.
  const std::string shards = folder.path() + "/shards/valid-*.h5";
  const auto epoch =
      data::Loader({{.path = shards}},
                   {.sequence_length = 256, .global_batch_sequences = 1, .micro_batch_sequences = 1})
          .samples_per_epoch();
  REQUIRE(epoch == 76);
  std::vector<std::vector<int32_t>> seen = t::windows_seen(shards, 8, steps, 0);
  for (std::vector<int32_t>& window : t::windows_seen(shards, 2, 9 - steps, consumed))
    seen.push_back(std::move(window));
  // Of the tenth step the first half of the batch is rank 0's.
  data::Loader first({{.path = shards}}, {.sequence_length = 256,
                                          .seed = 7,
                                          .global_batch_sequences = 8,
                                          .micro_batch_sequences = 1,
                                          .rank = 0,
                                          .world_size = 2,
                                          .samples_consumed = 72});
  for (int i = 0; i < 4; ++i) seen.push_back(first.next().tokens);
  std::sort(seen.begin(), seen.end());
  CHECK(static_cast<int64_t>(seen.size()) == epoch);
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

}  // namespace osdn
