// Runs of several ranks, forked from the test, against runs of one: over Gloo, on small models.
#include "train/data_parallel.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/log.h"
#include "model/init.h"
#include "model/lm.h"
#include "optim/parameter_arena.h"
#include "tests/support/ranks.h"
#include "tests/train/train_folder.h"
#include "train/agreement.h"

namespace osdn::train {
namespace data_parallel_test {

using test::RankResult;

config::Config small_run(const TrainFolder& folder, const std::string& name) {
  config::Config made = folder.config(name, config::Device::kCpu, config::Precision::kFloat32);
  made.train.steps = 8;
  made.train.micro_batch_sequences = 2;
  made.metrics.residual_every_steps = 4;
  made.evaluation = {.every_steps = 4, .sequences = 7};
  made.distributed.timeout_seconds = 60;
  return made;
}

std::vector<RankResult> train_on(int world_size, const config::Config& config) {
  const int port = test::free_port();
  test::Ranks ranks(world_size, [&](int rank) {
    log::set_level(log::Level::kError);
    at::set_num_threads(1);
    const ExitCode code = train(
        config, world_size == 1 ? dist::LaunchEnvironment{} : test::rank_on_loopback(rank, world_size, port),
        {});
    return std::to_string(static_cast<int>(code));
  });
  return ranks.wait_all();
}

void train_to_the_end(int world_size, const config::Config& config) {
  for (const RankResult& result : train_on(world_size, config)) {
    INFO(config.run.name << ": " << result.text);
    REQUIRE(result.exit_code == 0);
    REQUIRE(result.text == "0");
  }
}

/// Every field of every step that does not tell the time.
void check_metrics(const std::vector<Json>& found, const std::vector<Json>& expected, double tolerance) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("step " << i + 1);
    for (const char* field : {"step", "tokens", "epoch", "learning_rate", "skipped", "clipped"}) {
      INFO(field);
      CHECK(found[i][field] == expected[i][field]);
    }
    for (const char* field : {"loss", "grad_norm", "q_geo", "q_geo_plain", "beta_mean", "d_mean", "d_min",
                              "d_max", "write_strength_max", "retention_mean", "validation_loss"}) {
      INFO(field);
      REQUIRE(found[i].contains(field) == expected[i].contains(field));
      if (!found[i].contains(field)) continue;
      const double value = expected[i][field].get<double>();
      CHECK(std::abs(found[i][field].get<double>() - value) <= tolerance * std::abs(value));
    }
  }
}

/// By name: the order in a file is that of the arena, which puts what ranks have in common last.
void check_close_weights(const checkpoint::Loaded& a, const checkpoint::Loaded& b, double tolerance) {
  std::map<std::string, at::Tensor> expected;
  for (const checkpoint::NamedTensor& tensor : b.snapshot.weights) expected[tensor.name] = tensor.value;
  REQUIRE(a.snapshot.weights.size() == expected.size());
  for (const checkpoint::NamedTensor& tensor : a.snapshot.weights)
    test::check_close(tensor.name, tensor.value, expected[tensor.name], tolerance);
}

}  // namespace data_parallel_test

// fp32 sums in another order: 1e-7 a term, over 8 steps; an error of the method is 1e-2 and more.
TEST_CASE("1, 2 and 4 ranks of one global batch have the same losses, norms and residuals, with ZeRO-0 and 1",
          "[data_parallel][dist]") {
  namespace t = data_parallel_test;
  const TrainFolder folder;
  t::train_to_the_end(1, t::small_run(folder, "one"));
  const std::vector<Json> expected = folder.metrics("one");
  REQUIRE(expected.size() == 8);
  CHECK(expected.back()["loss"].get<double>() < expected.front()["loss"].get<double>());
  for (const int world : {2, 4}) {
    for (const int64_t zero : {0, 1}) {
      config::Config config =
          t::small_run(folder, "ranks-" + std::to_string(world) + "-" + std::to_string(zero));
      config.distributed.zero = zero;
      config.train.micro_batch_sequences = world == 2 ? 2 : 1;
      t::train_to_the_end(world, config);
      INFO(config.run.name);
      t::check_metrics(folder.metrics(config.run.name), expected, 2e-5);
      t::check_close_weights(folder.newest(config.run.name), folder.newest("one"), 1e-4);
      const checkpoint::Loaded newest = folder.newest(config.run.name);
      const bool shard = std::filesystem::exists(newest.directory + "/optimizer-1-of-" +
                                                 std::to_string(world) + ".safetensors");
      CHECK(shard == (zero == 1));
    }
  }
}

TEST_CASE("in bfloat16, where full-precision parameters are common to all ranks, 2 ranks are as one",
          "[data_parallel][dist]") {
  namespace t = data_parallel_test;
  const TrainFolder folder;
  config::Config one = t::small_run(folder, "one");
  one.train.precision = config::Precision::kBfloat16;
  config::Config two = one;
  two.run.name = "two";
  t::train_to_the_end(1, one);
  t::train_to_the_end(2, two);
  // A weight whose last bit of fp32 differs may round to another bfloat16, 4e-3 away; AdamW takes a step of
  // the same size for any gradient, so what began at zero differs most.
  t::check_metrics(folder.metrics("two"), folder.metrics("one"), 2e-3);
  t::check_close_weights(folder.newest("two"), folder.newest("one"), 2e-2);
}

TEST_CASE("tied embeddings, parameters without gradients and every backbone are shared out alike",
          "[data_parallel][dist]") {
  namespace t = data_parallel_test;
  const TrainFolder folder;
  for (const config::Backbone backbone : {config::Backbone::kDeltaNet, config::Backbone::kGatedDeltaNet,
                                          config::Backbone::kKda, config::Backbone::kTransformer}) {
    config::Config one = t::small_run(folder, "one-" + std::to_string(static_cast<int>(backbone)));
    one.train.steps = 3;
    one.train.precision = config::Precision::kBfloat16;
    one.model.backbone = backbone;
    one.model.tie_embeddings = true;
    one.model.osdn->learn_initial_scale = false;
    one.model.osdn->step_size = 0.1;
    if (backbone == config::Backbone::kTransformer) one.model.osdn.reset();
    config::Config two = one;
    two.run.name = "two-" + std::to_string(static_cast<int>(backbone));
    t::train_to_the_end(1, one);
    t::train_to_the_end(2, two);
    INFO(one.run.name);
    t::check_metrics(folder.metrics(two.run.name), folder.metrics(one.run.name), 2e-3);
  }
}

TEST_CASE("jobs of equally many ranks have equal bits, straight or stopped and resumed",
          "[data_parallel][dist]") {
  namespace t = data_parallel_test;
  // In bfloat16 the ranks share the masters out too.
  const auto precision = GENERATE(config::Precision::kFloat32, config::Precision::kBfloat16);
  const TrainFolder folder;
  config::Config straight = t::small_run(folder, "straight");
  straight.train.precision = precision;
  config::Config parts = straight;
  parts.run.name = "parts";
  t::train_to_the_end(2, straight);
  for (const int64_t steps : {3, 5, 8}) {
    parts.train.steps = steps;
    t::train_to_the_end(2, parts);
  }
  check_same_bits(folder.newest("straight"), folder.newest("parts"));
  const auto expected = folder.metrics("straight");
  const auto found = folder.metrics("parts");
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i]["loss"] == expected[i]["loss"]);
    CHECK(found[i]["grad_norm"] == expected[i]["grad_norm"]);
  }
}

TEST_CASE("a run goes on from 2 ranks to 4 to 1 and back to 2, as if it had always been one",
          "[data_parallel][dist]") {
  namespace t = data_parallel_test;
  const auto precision = GENERATE(config::Precision::kFloat32, config::Precision::kBfloat16);
  const bool wide = precision == config::Precision::kFloat32;
  CAPTURE(wide);
  const TrainFolder folder;
  config::Config elastic = t::small_run(folder, "one");
  elastic.train.precision = precision;
  t::train_to_the_end(1, elastic);
  elastic.run.name = "elastic";
  elastic.train.micro_batch_sequences = std::nullopt;  // each start finds one that fits
  for (const auto& [world, steps] : {std::pair{2, 2}, {4, 4}, {1, 6}, {2, 8}}) {
    elastic.train.steps = steps;
    t::train_to_the_end(world, elastic);
  }
  std::vector<Json> expected = folder.metrics("one");
  std::vector<Json> found = folder.metrics("elastic");
  // Each start ended with a validation of its own.
  for (std::vector<Json>* records : {&expected, &found})
    for (Json& record : *records) record.erase("validation_loss");
  // In bfloat16 as of two ranks and one above.
  t::check_metrics(found, expected, wide ? 2e-5 : 2e-3);
  t::check_close_weights(folder.newest("elastic"), folder.newest("one"), wide ? 1e-4 : 2e-2);
}

TEST_CASE("when a layer's backward is told to be over, its gradients and those behind it are final",
          "[data_parallel]") {
  const auto recompute =
      GENERATE(config::Recompute::kNone, config::Recompute::kMixer, config::Recompute::kBlock);
  const auto backbone =
      GENERATE(config::Backbone::kDeltaNet, config::Backbone::kGatedDeltaNet, config::Backbone::kKda);
  config::Model config;
  config.backbone = backbone;
  config.hidden_size = 32;
  config.num_layers = 3;
  config.num_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 48;
  config.osdn = config::Osdn{};
  config.osdn->retention = config::Retention::kOwnGate;
  const auto specs = model::parameter_specs(config, kVocab);
  optim::ParameterArena arena(specs, {});
  for (const optim::ParameterArena::Slot& slot : arena.slots())
    model::initialize(slot.spec, 1, arena.master(slot.spec.name));
  const model::LanguageModel lm(config, kVocab, arena.source());

  std::map<std::string, at::Tensor> seen;  // gradients as they were when their layer was over
  std::vector<int64_t> order;
  const model::LayerHooks hooks{.before_forward = [&](int64_t layer) { order.push_back(layer); },
                                .after_backward =
                                    [&](int64_t layer) {
                                      order.push_back(-layer);
                                      for (const optim::ParameterArena::Slot& slot : arena.slots())
                                        if (model::layer_of(slot.spec.name, config.num_layers) >= layer)
                                          seen.emplace(slot.spec.name,
                                                       arena.gradient(slot.spec.name).clone());
                                    }};
  const at::Tensor tokens = at::randint(kVocab, {64}, at::kLong);
  model::ForwardCall call{
      .sequences = ops::Sequences::make({0, 40, 64}, at::kCPU), .recompute = recompute, .hooks = &hooks};
  torch::autograd::backward({lm.loss(tokens, tokens.roll(1), call)}, {});
  CHECK(order == std::vector<int64_t>{0, 1, 2, 3, 4, -4, -3, -2, -1});
  for (const optim::ParameterArena::Slot& slot : arena.slots()) {
    INFO(slot.spec.name);
    const at::Tensor final_gradient = arena.gradient(slot.spec.name);
    if (model::layer_of(slot.spec.name, config.num_layers) == 0) {
      CHECK(seen.count(slot.spec.name) == 0);
      continue;
    }
    REQUIRE(seen.count(slot.spec.name) == 1);
    CHECK(seen[slot.spec.name].equal(final_gradient));
  }
}

TEST_CASE("weights gathered when the passes begin are those gathered after the update",
          "[data_parallel][dist]") {
  const std::vector<int> ports = {test::free_port(), test::free_port()};
  test::Ranks ranks(2, [&](int rank) -> std::string {
    at::set_num_threads(1);
    std::vector<at::Tensor> weights;
    for (const bool in_passes : {false, true}) {
      const auto communicator = dist::make_communicator(
          test::rank_on_loopback(rank, 2, ports[in_passes ? 1 : 0]), at::kCPU, std::chrono::seconds(60));
      config::Model config;
      config.hidden_size = 32;
      config.num_layers = 2;
      config.num_heads = 2;
      config.head_dim = 16;
      config.intermediate_size = 48;
      const auto specs = model::parameter_specs(config, kVocab);
      optim::ParameterArena arena(
          specs, {.compute = at::kBFloat16,
                  .sharding = arena_sharding(*communicator, 1, model::count_parameters(specs))});
      for (const optim::ParameterArena::Slot& slot : arena.slots()) {
        at::Tensor values = at::empty(slot.spec.shape, at::kFloat);
        model::initialize(slot.spec, 1, values);
        arena.set(slot, values);
      }
      arena.refresh_compute_copy();
      DataParallel parallel(arena, *communicator, config.num_layers);
      if (in_passes) parallel.gather_in_passes();
      const model::LanguageModel lm(config, kVocab, arena.source());
      // Of a fresh arena each rank has copied the masters of its own parts alone.
      for (const optim::ParameterArena::Range& bucket : arena.buckets())
        communicator->all_gather(arena.compute_copy().narrow(0, bucket.begin, bucket.size()),
                                 "first weights");
      const at::Tensor tokens = at::arange(64, at::kLong) * (rank + 3) % kVocab;  // [64]
      for (int64_t update = 1; update <= 4; ++update) {
        arena.zero_gradients();
        parallel.begin_passes();
        model::ForwardCall call{.sequences = ops::Sequences::make({0, 40, 64}, at::kCPU),
                                .hooks = parallel.hooks(true)};
        torch::autograd::backward({lm.loss(tokens, tokens.roll(1), call) / 128.0}, {});
        parallel.finish_gradients();
        parallel.update({}, 1e-2, update, 1.0);
        if (update == 2) parallel.wait_for_weights();  // as validation does
      }
      parallel.wait_for_weights();
      weights.push_back(arena.compute_copy().clone());
    }
    if (!weights[0].isfinite().all().item<bool>()) return "not finite";
    return weights[0].equal(weights[1]) ? "equal" : "different";
  });
  for (const test::RankResult& result : ranks.wait_all()) CHECK(result.text == "equal");
}

TEST_CASE("sets of fewer windows than ranks are validated once, on whatever ranks", "[data_parallel][dist]") {
  namespace t = data_parallel_test;
  const TrainFolder folder;
  for (const int64_t sequences : {1, 3}) {
    config::Config one = t::small_run(folder, "one-" + std::to_string(sequences));
    one.train.steps = 1;
    one.train.micro_batch_sequences = 1;
    one.evaluation = {.every_steps = 1, .sequences = sequences};
    config::Config four = one;
    four.run.name = "four-" + std::to_string(sequences);
    t::train_to_the_end(1, one);
    t::train_to_the_end(4, four);
    CHECK(folder.metrics(four.run.name)[0]["validation_loss"].get<double>() ==
          Approx(folder.metrics(one.run.name)[0]["validation_loss"].get<double>()).epsilon(1e-6));
  }
}

TEST_CASE("a batch that ranks cannot share equally is refused by every rank, with the numbers",
          "[data_parallel][dist]") {
  namespace t = data_parallel_test;
  const TrainFolder folder;
  for (const test::RankResult& result : t::train_on(3, t::small_run(folder, "three"))) {
    INFO(result.text);
    CHECK(result.exit_code == static_cast<int>(ExitCode::kUserError));
    CHECK(result.text.find("8 sequences of 128, which 3 processes cannot share equally") !=
          std::string::npos);
  }
}

TEST_CASE("all ranks skip a step that is not finite, and give up together", "[data_parallel][dist]") {
  namespace t = data_parallel_test;
  const TrainFolder folder;
  config::Config config = t::small_run(folder, "diverging");
  config.optimizer.learning_rate = 1e30;
  config.optimizer.warmup_steps = 0;
  config.optimizer.max_skipped_in_row = 2;
  for (const test::RankResult& result : t::train_on(2, config)) {
    INFO(result.text);
    CHECK(result.exit_code == static_cast<int>(ExitCode::kUserError));
    CHECK(result.text.find("2 steps in a row were skipped") != std::string::npos);
  }
}

TEST_CASE("a rank with another configuration is told which key differs", "[data_parallel][dist]") {
  namespace t = data_parallel_test;
  const TrainFolder folder;
  const int port = test::free_port();
  test::Ranks ranks(2, [&](int rank) {
    log::set_level(log::Level::kError);
    at::set_num_threads(1);
    config::Config config = t::small_run(folder, "two");
    config.distributed.timeout_seconds = 5;
    if (rank == 1) config.optimizer.weight_decay = 0.25;
    return std::to_string(static_cast<int>(train(config, test::rank_on_loopback(rank, 2, port), {})));
  });
  const test::RankResult first = ranks.wait(0);
  const test::RankResult second = ranks.wait(1);
  INFO(first.text << "\n" << second.text);
  CHECK(second.exit_code == static_cast<int>(ExitCode::kUserError));
  CHECK(second.text.find("optimizer.weight_decay") != std::string::npos);
  CHECK(first.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
}

TEST_CASE("what rank 0 finds wrong is thrown by every rank, with its kind", "[data_parallel][dist]") {
  const int port = test::free_port();
  test::Ranks ranks(2, [&](int rank) {
    at::set_num_threads(1);
    const auto group =
        dist::make_communicator(test::rank_on_loopback(rank, 2, port), at::kCPU, std::chrono::seconds(20));
    const Json told = from_rank_0(*group, "a number", [&]() -> Json { return {{"number", 3 + rank}}; });
    if (told["number"] != 3) throw InternalError("got {}", told.dump());
    from_rank_0(*group, "a shard", []() -> Json { throw DataError("a.h5: truncated"); });
    return std::string("not reached");
  });
  const auto results = ranks.wait_all();
  CHECK(results[0].exit_code == static_cast<int>(ExitCode::kDataError));
  CHECK(results[1].exit_code == static_cast<int>(ExitCode::kDataError));
  CHECK(results[0].text == "a.h5: truncated");
  CHECK(results[1].text == "rank 0: a.h5: truncated");
}

}  // namespace osdn::train
