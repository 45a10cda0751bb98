// What the tests of captured training share: small runs, a world of one over NCCL, a small model with its
// passes.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/error.h"
#include "dist/detail/c10d_communicator.h"
#include "model/init.h"
#include "tests/support/ranks.h"
#include "tests/train/train_folder.h"
#include "train/passes.h"

namespace osdn::train {

inline config::Config graph_run(const TrainFolder& folder, const std::string& name, bool captured) {
  config::Config made = folder.config(name, config::Device::kCuda, config::Precision::kBfloat16);
  made.train.steps = 12;
  made.train.cuda_graph = captured;
  made.train.micro_batch_sequences = 4;  // two micro-batches a step
  made.evaluation = {.every_steps = 4, .sequences = 8};
  return made;
}

/// A world of one that has made connections all the same: NCCL's collectives on a GPU, Gloo's on a CPU.
inline std::unique_ptr<dist::Communicator> connect_one(const dist::LaunchEnvironment& /*launched*/,
                                                       at::Device device, std::chrono::seconds timeout) {
  return dist::detail::make_c10d_communicator(test::rank_on_loopback(0, 1, test::free_port()), device,
                                              timeout);
}

inline void check_equal_runs(const TrainFolder& folder, const std::string& a, const std::string& b) {
  check_same_bits(folder.newest(a), folder.newest(b));
  const auto expected = folder.metrics(a);
  const auto found = folder.metrics(b);
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    for (const char* field : {"step", "loss", "grad_norm", "clipped", "skipped", "validation_loss", "q_geo",
                              "d_mean", "beta_mean"}) {
      INFO(b << ", step " << i + 1 << " " << field);
      REQUIRE(found[i].contains(field) == expected[i].contains(field));
      if (expected[i].contains(field)) CHECK(found[i][field] == expected[i][field]);
    }
}

/// A small model with its arena and passes on a GPU, over NCCL.
struct GraphModel {
  GraphModel(std::chrono::seconds timeout, bool captured)
      : communicator(connect_one({}, device, timeout)),
        model_config(small_model()),
        arena(model::parameter_specs(model_config, kVocab),
              {.device = device,
               .compute = at::kBFloat16,
               .sharding = arena_sharding(*communicator, 1, 50'000)}),
        lm(model_config, kVocab, arena.source()),
        parallel(arena, *communicator, lm.num_layers()),
        passes(lm, parallel, {.global_targets = 256, .residuals = true, .cuda_graph = captured}) {
    for (const optim::ParameterArena::Slot& slot : arena.slots()) {
      at::Tensor values = at::empty(slot.spec.shape, at::kFloat);
      model::initialize(slot.spec, 1, values);
      arena.set(slot, values);
    }
    arena.refresh_compute_copy();
  }
  static config::Model small_model() {
    config::Model made;
    made.hidden_size = 64;
    made.num_layers = 2;
    made.num_heads = 2;
    made.head_dim = 32;
    made.intermediate_size = 96;
    made.osdn = config::Osdn{};
    return made;
  }
  /// A pass over two windows of 128 tokens that are cut into documents after every `length`, which is a step.
  void step(int64_t length) {
    data::Batch batch;
    batch.num_windows_ = 2;
    for (int32_t i = 0; i < 2 * 129; ++i) batch.tokens.push_back((i * 7 + 3) % static_cast<int32_t>(kVocab));
    for (int64_t token = 0; token < 256; token += length) batch.offsets.push_back(token);
    batch.offsets.push_back(256);
    arena.zero_gradients();
    passes.begin_step();
    statistics = passes.run(batch, 0, true);
  }

  at::Device device{at::kCUDA, 0};
  std::unique_ptr<dist::Communicator> communicator;
  config::Model model_config;
  optim::ParameterArena arena;
  model::LanguageModel lm;
  DataParallel parallel;
  Passes passes;
  at::Tensor statistics;
};

}  // namespace osdn::train
