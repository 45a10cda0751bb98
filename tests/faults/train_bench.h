// A run of a tiny model in forked children, as the tests of faults and of kills train it.
#pragma once

#include "base/json.h"
#include "data/shard.h"
#include "tests/faults/support.h"
#include "tests/support/test.h"
#include "train/trainer.h"

namespace osdn::faults {

inline constexpr int64_t kVocab = 32;

class TrainBench : public Bench {
 public:
  TrainBench() {
    // Forked children of a process with worker threads would wait for threads that they do not have.
    at::set_num_threads(1);
    for (const char* name : {"train", "valid"}) {
      data::ShardWriter writer(fmt::format("{}/{}-00000.h5", root(), name),
                               {.tokenizer_digest = "none", .vocab_size = kVocab, .source_names = {"test"}});
      std::vector<int32_t> tokens = {1};
      for (int i = 0; i < 200; ++i) tokens.push_back((tokens.back() * 5 + 7) % static_cast<int32_t>(kVocab));
      writer.add_document(tokens, 200);
      writer.finish();
    }
  }

  Outcome train(const Plan& plan) const {
    return run(plan, [&] { return osdn::train::train(config(), {}, {}); });
  }
  std::string run_folder() const { return work() + "/runs/small"; }
  std::string checkpoints() const { return run_folder() + "/checkpoints"; }

  config::Config config() const {
    config::Config made;
    made.run.name = "small";
    made.run.directory = work() + "/runs";
    made.run.device = config::Device::kCpu;
    made.model.vocab_size = kVocab;
    made.model.hidden_size = 8;
    made.model.num_layers = 1;
    made.model.num_heads = 1;
    made.model.head_dim = 8;
    made.model.intermediate_size = 8;
    made.model.osdn = config::Osdn{};
    made.data.train = {{.path = root() + "/train-*.h5"}};
    made.data.validation = {root() + "/valid-*.h5"};
    made.data.sequence_length = 16;
    made.optimizer.warmup_steps = 1;
    made.optimizer.schedule = config::Schedule::kConstant;
    made.train.steps = 3;
    made.train.global_batch_tokens = 32;
    made.train.micro_batch_sequences = 2;
    made.train.precision = config::Precision::kFloat32;
    // Every way that a checkpoint can go is taken: 1 is removed, 2 is reduced to its weights, 3 stays whole.
    made.checkpoint.every_steps = 1;
    made.checkpoint.keep_last = 1;
    made.checkpoint.keep_every_steps = 2;
    made.checkpoint.asynchronous = false;
    made.evaluation = {.every_steps = 2, .sequences = 2};
    return made;
  }
};

/// What must be the same after every disturbed and repeated run: all but times, the log and event files.
inline std::map<std::string, std::string> lasting_files(const TrainBench& bench) {
  std::map<std::string, std::string> lasting;
  for (const auto& [name, content] : files_below(bench.run_folder())) {
    if (name == "log.txt" || name == "environment.json" || name.rfind("tensorboard/", 0) == 0) {
      lasting[name.substr(0, name.find('/'))] = "exists";
      continue;
    }
    lasting[name] = content;
    if (name != "metrics.jsonl") continue;
    std::string& metrics = lasting[name] = "";
    std::istringstream lines(content);
    for (std::string line; std::getline(lines, line);) {
      Json record = Json::parse(line);
      for (const char* field : {"tokens_per_second", "tokens_per_second_per_gpu", "step_milliseconds",
                                "data_wait_milliseconds", "memory_gib"})
        record.erase(field);
      metrics += record.dump() + "\n";
    }
  }
  return lasting;
}

}  // namespace osdn::faults
