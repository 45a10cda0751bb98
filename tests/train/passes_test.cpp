// Training with forward and backward captured in a CUDA graph, with collectives where there are any, against
// training without.
#include "tests/train/graph_runs.h"

namespace osdn::train {

TEST_CASE("captured training has the bits of uncaptured training, for every backbone and with recomputation",
          "[passes][cuda]") {
  const TrainFolder folder;
  for (const config::Backbone backbone :
       {config::Backbone::kDeltaNet, config::Backbone::kGatedDeltaNet, config::Backbone::kKda}) {
    for (const config::Recompute recompute :
         {config::Recompute::kNone, config::Recompute::kMixer, config::Recompute::kBlock}) {
      const std::string name = "run-" + std::to_string(static_cast<int>(backbone)) + "-" +
                               std::to_string(static_cast<int>(recompute));
      for (const bool captured : {false, true}) {
        config::Config config = graph_run(folder, name + (captured ? "-graph" : ""), captured);
        config.model.backbone = backbone;
        if (backbone != config::Backbone::kDeltaNet) config.model.osdn->step_size = 0.1;
        config.train.recompute = recompute;
        REQUIRE(train(config, {}, {}) == ExitCode::kDone);
      }
      check_equal_runs(folder, name, name + "-graph");
    }
  }
}

TEST_CASE("captured training resumes in the middle, captured or not, with the bits of one run",
          "[passes][cuda]") {
  const TrainFolder folder;
  REQUIRE(train(graph_run(folder, "straight", false), {}, {}) == ExitCode::kDone);
  config::Config parts = graph_run(folder, "parts", true);
  for (const int64_t steps : {5, 8, 12}) {
    parts.train.steps = steps;
    parts.train.cuda_graph = steps != 8;
    REQUIRE(train(parts, {}, {}) == ExitCode::kDone);
  }
  check_same_bits(folder.newest("straight"), folder.newest("parts"));
}

TEST_CASE("captured training clips and skips as uncaptured training does", "[passes][cuda]") {
  const TrainFolder folder;
  for (const bool captured : {false, true}) {
    config::Config clips = graph_run(folder, captured ? "clips-graph" : "clips", captured);
    clips.optimizer.clip_norm = 0.1;
    REQUIRE(train(clips, {}, {}) == ExitCode::kDone);
    // So large a step that weights overflow and everything after it is skipped.
    config::Config skips = graph_run(folder, captured ? "skips-graph" : "skips", captured);
    skips.optimizer.learning_rate = 1e30;
    skips.optimizer.warmup_steps = 0;
    skips.optimizer.max_skipped_in_row = 100;
    REQUIRE(train(skips, {}, {}) == ExitCode::kDone);
  }
  check_equal_runs(folder, "clips", "clips-graph");
  CHECK(folder.metrics("clips-graph").back()["clipped"].get<bool>());
  CHECK(folder.metrics("skips").back()["skipped"].get<bool>());
  CHECK(folder.metrics("skips-graph").back()["skipped"].get<bool>());
  check_same_bits(folder.newest("clips"), folder.newest("clips-graph"));
}

TEST_CASE("asking for a graph is refused where an op depends on the lengths of documents", "[passes][cuda]") {
  const TrainFolder folder;
  config::Config config = graph_run(folder, "refused", true);
  config.train.precision = config::Precision::kFloat32;
  CHECK_THROWS_AS(train(config, {}, {}), UserError);
}

TEST_CASE("asking for a CUDA graph on a CPU is refused, in the words of the key", "[passes]") {
  const TrainFolder folder;
  config::Config config = graph_run(folder, "refused", true);
  config.run.device = config::Device::kCpu;
  config.train.precision = config::Precision::kFloat32;
  std::string message;
  try {
    train(config, {}, {});
  } catch (const UserError& refused) {
    message = refused.what();
  }
  CHECK(message == "train.cuda_graph: expected false or auto on cpu, got true");
}

TEST_CASE("one rank with connections trains as one without, on a CPU, with ZeRO-0 and 1", "[passes]") {
  const TrainFolder folder;
  config::Config config = graph_run(folder, "alone", false);
  config.run.device = config::Device::kCpu;
  config.train.precision = config::Precision::kFloat32;
  REQUIRE(train(config, {}, {}) == ExitCode::kDone);
  for (const int64_t zero : {0, 1}) {
    config.run.name = "connected-" + std::to_string(zero);
    config.distributed.zero = zero;
    REQUIRE(train(config, {}, {}, connect_one) == ExitCode::kDone);
    if (zero == 0) check_equal_runs(folder, "alone", config.run.name);
    const std::vector<Json> expected = folder.metrics("alone");
    const std::vector<Json> found = folder.metrics(config.run.name);
    REQUIRE(found.size() == expected.size());
    // With ZeRO-1 the squares of the norm are added up part by part.
    for (size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i]["loss"].get<double>() == Approx(expected[i]["loss"].get<double>()).epsilon(1e-6));
      CHECK(found[i]["grad_norm"].get<double>() ==
            Approx(expected[i]["grad_norm"].get<double>()).epsilon(1e-5));
    }
  }
}

TEST_CASE("captured training with NCCL's collectives has the bits of training without a graph",
          "[passes][cuda]") {
  const TrainFolder folder;
  const int64_t zero = GENERATE(0, 1);
  const int64_t micro_batch = GENERATE(2, 4, 8);  // 4, 2 and 1 a step
  const auto run_of = [&](const std::string& name, bool captured) {
    config::Config config = graph_run(folder, name, captured);
    config.train.micro_batch_sequences = micro_batch;
    config.train.steps = 40;
    config.distributed.zero = zero;
    config.evaluation = {.every_steps = 7, .sequences = 8};
    config.checkpoint.every_steps = 9;
    return config;
  };
  CAPTURE(zero, micro_batch);
  REQUIRE(train(run_of("eager", false), {}, {}, connect_one) == ExitCode::kDone);
  REQUIRE(train(run_of("graph", true), {}, {}, connect_one) == ExitCode::kDone);
  check_equal_runs(folder, "eager", "graph");
  // The same without connections, where the norm is added up alike, and stopped, resumed and changed over in
  // the middle.
  if (zero == 0) {
    REQUIRE(train(run_of("alone", true), {}, {}) == ExitCode::kDone);
    check_equal_runs(folder, "eager", "alone");
  }
  config::Config parts = run_of("parts", true);
  for (const int64_t steps : {13, 21, 40}) {
    parts.train.steps = steps;
    parts.train.cuda_graph = steps != 21;
    REQUIRE(train(parts, {}, {}, connect_one) == ExitCode::kDone);
  }
  check_same_bits(folder.newest("eager"), folder.newest("parts"));
}

TEST_CASE("a graph outgrown by its documents is recorded again, and its bits are those of no graph",
          "[passes][cuda]") {
  GraphModel captured(std::chrono::seconds(60), true);
  GraphModel plain(std::chrono::seconds(60), false);
  // Ever more documents, then few, single tokens, and two windows whole.
  for (const int64_t length : {128, 64, 37, 16, 7, 3, 100, 1, 2, 128}) {
    CAPTURE(length);
    captured.step(length);
    plain.step(length);
    CHECK(captured.passes.loss_sum().equal(plain.passes.loss_sum()));
    CHECK(captured.arena.gradients().equal(plain.arena.gradients()));
    CHECK(captured.statistics.equal(plain.statistics));
  }
}

}  // namespace osdn::train
