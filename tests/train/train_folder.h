// A folder with small shards and the configuration of a small run, for tests that train.
#pragma once

#include <sstream>

#include "base/fs.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "data/shard.h"
#include "tests/support/test.h"
#include "train/trainer.h"

namespace osdn::train {

inline constexpr int64_t kVocab = 64;

/// Shards of documents in which every token follows from the one before it, so that a small model learns
/// quickly.
inline void write_shard(const std::string& path, int64_t num_documents, uint64_t seed) {
  data::ShardWriter writer(path,
                           {.tokenizer_digest = "none", .vocab_size = kVocab, .source_names = {"test"}});
  // Not LibTorch's own: to seed that one speaks to the driver, and what has done so must not fork.
  const at::Generator random = at::detail::createCPUGenerator(seed);
  for (int64_t document = 0; document < num_documents; ++document) {
    std::vector<int32_t> tokens = {1};
    const auto length = at::randint(20, 120, {1}, random).item<int64_t>();
    for (int64_t i = 0; i < length; ++i)
      tokens.push_back((tokens.back() * 5 + 7) % static_cast<int32_t>(kVocab));
    writer.add_document(tokens, length);
  }
  writer.finish();
}

class TrainFolder {
 public:
  TrainFolder() {
    write_shard(folder_.path() + "/train-00000.h5", 400, 1);
    write_shard(folder_.path() + "/valid-00000.h5", 20, 2);
  }
  config::Config config(const std::string& name, config::Device device, config::Precision precision) const {
    config::Config made;
    made.run.name = name;
    made.run.directory = folder_.path() + "/runs";
    made.run.device = device;
    made.model.vocab_size = kVocab;
    made.model.hidden_size = 64;
    made.model.num_layers = 2;
    made.model.num_heads = 2;
    made.model.head_dim = 32;
    made.model.intermediate_size = 96;
    made.model.osdn = config::Osdn{};
    made.model.osdn->retention = config::Retention::kOwnGate;
    made.data.train = {{.path = folder_.path() + "/train-*.h5"}};
    made.data.validation = {folder_.path() + "/valid-*.h5"};
    made.data.sequence_length = 128;
    made.optimizer.learning_rate = 1e-3;
    made.optimizer.warmup_steps = 4;
    made.optimizer.schedule = config::Schedule::kConstant;
    made.train.steps = 20;
    made.train.global_batch_tokens = 1024;
    made.train.micro_batch_sequences = 4;
    made.train.precision = precision;
    made.checkpoint.every_steps = 1000;
    made.evaluation = {.every_steps = 1000, .sequences = 8};
    made.metrics.residual_every_steps = 5;
    made.metrics.tensorboard = false;
    return made;
  }
  std::vector<Json> metrics(const std::string& name) const {
    std::vector<Json> records;
    std::istringstream lines(read_file(folder_.path() + "/runs/" + name + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) records.push_back(Json::parse(line));
    return records;
  }
  checkpoint::Loaded newest(const std::string& name) const {
    return *checkpoint::load_newest(folder_.path() + "/runs/" + name + "/checkpoints");
  }

 private:
  TemporaryDirectory folder_;
};

inline void check_same_bits(const checkpoint::Loaded& a, const checkpoint::Loaded& b) {
  const auto check = [](const std::vector<checkpoint::NamedTensor>& x,
                        const std::vector<checkpoint::NamedTensor>& y) {
    REQUIRE(x.size() == y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      INFO(x[i].name);
      CHECK(x[i].name == y[i].name);
      CHECK(x[i].value.equal(y[i].value));
    }
  };
  check(a.snapshot.weights, b.snapshot.weights);
  check(a.snapshot.exp_avg, b.snapshot.exp_avg);
  check(a.snapshot.exp_avg_sq, b.snapshot.exp_avg_sq);
}

}  // namespace osdn::train
