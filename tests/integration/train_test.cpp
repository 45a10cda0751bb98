#include <signal.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tests/integration/run_fixture.h"

namespace osdn {
namespace {

using test::check_mentions;
using test::RunFolder;
using test::timeless_metrics;

TEST_CASE("training writes the run's files and every field of the metrics", "[train]") {
  const RunFolder folder;
  const test::ProcessResult result = folder.train();
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  for (const char* file : {"config.yaml", "environment.json", "metrics.jsonl", "log.txt",
                           "checkpoints/latest", "checkpoints/step_00000012/manifest.json"})
    CHECK(std::filesystem::exists(folder.run() + "/" + file));
  CHECK(!std::filesystem::is_empty(folder.run() + "/tensorboard"));
  std::istringstream lines(read_file(folder.run() + "/metrics.jsonl"));
  std::string first;
  std::getline(lines, first);
  const Json record = Json::parse(first);
  for (const char* field :
       {"step", "tokens", "epoch", "loss", "perplexity", "learning_rate", "grad_norm", "clipped", "skipped",
        "tokens_per_second", "tokens_per_second_per_gpu", "mfu", "gemm_utilization", "step_milliseconds",
        "data_wait_milliseconds", "memory_gib"}) {
    INFO(field);
    CHECK(record.contains(field));
  }
  const auto metrics = timeless_metrics(folder.run());
  REQUIRE(metrics.size() == 12);
  CHECK(metrics[0]["learning_rate"].get<double>() == Approx(2e-3 / 4));
  const Json& residual = metrics[1];
  for (const char* field : {"q_geo", "q_geo_plain", "q_floor_share", "beta_mean", "write_strength_max",
                            "d_mean", "d_min", "d_max", "d_at_box", "retention_mean"}) {
    INFO(field);
    REQUIRE(residual.contains(field));
    CHECK(residual[field].is_number());
  }
  // Beta-aware steps raise d where that lowers the residual, within the box.
  CHECK(residual["q_geo"].get<double>() < residual["q_geo_plain"].get<double>());
  CHECK(residual["d_max"].get<double>() <= 1.5 + 1e-6);
  CHECK(residual["d_min"].get<double>() >= 2.0 / 3.0 - 1e-6);
  CHECK(metrics[5].contains("validation_loss"));
  CHECK(metrics[11].contains("validation_bits_per_byte"));
}

TEST_CASE("the loss falls from that of a uniform guess", "[train]") {
  const RunFolder folder;
  REQUIRE(folder.train({"train.steps=40", "evaluation.every_steps=1000", "checkpoint.every_steps=1000"})
              .exit_code == 0);
  const auto metrics = timeless_metrics(folder.run());
  CHECK(metrics.front()["loss"].get<double>() == Approx(std::log(512.0)).margin(0.3));
  CHECK(metrics.back()["loss"].get<double>() < 5.2);
}

TEST_CASE("a run directory in use is refused, naming the process that holds it", "[train]") {
  const RunFolder folder;
  test::Process first = folder.start_training({"train.steps=100000"});
  while (first.running() && !std::filesystem::exists(folder.run() + "/metrics.jsonl"))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const TemporaryDirectory output;
  const test::ProcessResult second = folder.train_beside(output.path());
  CHECK(second.exit_code == 2);
  check_mentions(second.err, {"in use by process", "runs/small"});
}

TEST_CASE("a second signal ends the process at once", "[train]") {
  const RunFolder folder;
  test::Process process = folder.start_training({"train.steps=100000"});
  while (process.running() && !std::filesystem::exists(folder.run() + "/metrics.jsonl"))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  process.signal(SIGTERM);
  process.signal(SIGTERM);
  CHECK(process.wait().exit_code == 143);
}

TEST_CASE("what a user can get wrong gets one clear message and the right exit code", "[train]") {
  const RunFolder folder;
  struct Mistake {
    std::vector<std::string> overrides;
    int exit_code;
    std::vector<std::string> mentions;
  };
  const Mistake mistakes[] = {
      {{"train.stepz=3"}, 2, {"train.stepz", "steps"}},
      {{"train.steps=many"}, 2, {"train.steps", "many"}},
      {{"model.num_heads=3"}, 2, {"num_heads", "hidden_size"}},
      {{"model.osdn.box=[0.5, 3.0]"}, 2, {"box", "allow_unstable"}},
      {{"train.global_batch_tokens=500"}, 2, {"global_batch_tokens", "sequence_length"}},
      {{"train.micro_batch_sequences=3"}, 2, {"micro_batch_sequences", "divisor", "8"}},
      {{"data.sequence_length=1048576", "train.global_batch_tokens=1048576", "train.micro_batch_sequences=1"},
       2,
       {"sequence_length", "tokens"}},
      {{"data.train=[nowhere/*.h5]"}, 2, {"nowhere/*.h5"}},
      {{"data.tokenizer=nowhere.model"}, 2, {"nowhere.model"}},
      {{"data.tokenizer=small.yaml"}, 4, {"small.yaml"}},
      {{"data.train=[small.yaml]"}, 4, {"small.yaml"}},
      {{"model.vocab_size=100"}, 2, {"vocab_size", "512"}},
      {{"model.backbone=mamba"}, 2, {"backbone", "delta_net"}},
      {{"model.hidden_size=1048576", "model.num_heads=32768"},
       3,
       {"out of memory", "parameters need", "GiB"}},
  };
  for (const Mistake& mistake : mistakes) {
    const test::ProcessResult result = folder.train(mistake.overrides);
    INFO(mistake.overrides.front() << "\n" << result.err);
    CHECK(result.exit_code == mistake.exit_code);
    check_mentions(result.err, mistake.mentions);
  }
  const test::ProcessResult no_gpu = test::run_osdn(folder.train_arguments({"run.device=cuda"}),
                                                    folder.path(), {{"CUDA_VISIBLE_DEVICES", ""}});
  CHECK(no_gpu.exit_code == 3);
  check_mentions(no_gpu.err, {"run.device", "GPU"});
}

TEST_CASE("names that are no UTF-8 are taken, or refused before there is a run that nobody can read",
          "[train]") {
  const RunFolder folder;
  const std::string latin = folder.path() + "/caf\xE9";
  std::filesystem::create_directory(latin);
  std::filesystem::copy(folder.path() + "/small.yaml", latin + "/\xE9.yaml");
  CHECK(test::run_osdn({"train", "caf\xE9/\xE9.yaml", "--set", "train.steps=2"}, folder.path()).exit_code ==
        0);
  std::filesystem::create_directory_symlink(folder.path() + "/shards", latin + "/shards");
  const test::ProcessResult inside = test::run_osdn({"train", "\xE9.yaml"}, latin);
  INFO(inside.err);
  CHECK(inside.exit_code == 2);
  CHECK(inside.err.find("expected a path in UTF-8") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(latin + "/runs"));

  std::string text;
  for (int i = 0; i < 400; ++i) text += fmt::format("{{\"text\": \"Document {} of {}.\"}}\n", i, i * i);
  atomic_write(latin + "/\xE9.jsonl", text);
  const test::ProcessResult prepared = test::run_osdn(
      {"prepare", "--input", "caf\xE9/*.jsonl", "--vocab-size", "290", "--output", "made"}, folder.path());
  INFO(prepared.err);
  CHECK(prepared.exit_code == 0);
  CHECK(test::run_osdn({"inspect", "made"}, folder.path()).exit_code == 0);
}

TEST_CASE("a truncated shard is named before training starts", "[train]") {
  const RunFolder folder;
  const std::string source = glob_paths(test::prepared_folder() + "/shards/train-*.h5").front();
  const std::string bytes = read_file(source);
  atomic_write(folder.path() + "/cut.h5", bytes.substr(0, bytes.size() - 1000));
  const test::ProcessResult result = folder.train({"data.train=[cut.h5]"});
  CHECK(result.exit_code == 4);
  check_mentions(result.err, {"cut.h5"});
}

TEST_CASE("a tokenizer that did not make the shards is refused with both digests", "[train]") {
  const RunFolder folder;
  REQUIRE(test::run_osdn({"prepare", "--builtin", "--megabytes", "1", "--seed", "2", "--vocab-size", "512",
                          "--output", "other"},
                         folder.path())
              .exit_code == 0);
  const test::ProcessResult result = folder.train({"data.tokenizer=other/tokenizer.model"});
  CHECK(result.exit_code == 2);
  check_mentions(result.err, {"data.tokenizer", "other/tokenizer.model", "digest"});
}

TEST_CASE("weights of another model are refused by tensor name", "[train]") {
  const RunFolder folder;
  REQUIRE(folder.train({"train.steps=1"}).exit_code == 0);
  const test::ProcessResult result =
      folder.train({"run.name=other", "run.init_from=runs/small", "model.intermediate_size=64"});
  CHECK(result.exit_code == 4);
  check_mentions(result.err, {"mlp", "another model"});
  const test::ProcessResult nowhere = folder.train({"run.name=other", "run.init_from=nowhere"});
  CHECK(nowhere.exit_code == 2);
  check_mentions(nowhere.err, {"nowhere"});
}

TEST_CASE("a run with another model, data or optimizer is refused by key", "[train]") {
  const RunFolder folder;
  REQUIRE(folder.train({"train.steps=2"}).exit_code == 0);
  const test::ProcessResult other = folder.train({"optimizer.learning_rate=0.5", "model.num_layers=3"});
  CHECK(other.exit_code == 2);
  check_mentions(other.err, {"optimizer.learning_rate", "model.num_layers", "run.name"});
  const test::ProcessResult never = folder.train({"run.resume=never"});
  CHECK(never.exit_code == 2);
  check_mentions(never.err, {"run.resume", "step 2"});
  // A new name may start from the old weights.
  const test::ProcessResult fresh =
      folder.train({"run.name=next", "run.init_from=runs/small", "train.steps=1"});
  INFO(fresh.err);
  CHECK(fresh.exit_code == 0);
}

TEST_CASE("diverging training skips non-finite steps, then stops and names the last good checkpoint",
          "[train]") {
  const RunFolder folder;
  const test::ProcessResult result = folder.train(
      {"optimizer.learning_rate=1.0e+38", "optimizer.warmup_steps=0", "optimizer.max_skipped_in_row=3"});
  INFO(result.err);
  CHECK(result.exit_code == 2);
  check_mentions(result.err, {"not finite", "max_skipped_in_row", "checkpoint"});
}

}  // namespace
}  // namespace osdn
