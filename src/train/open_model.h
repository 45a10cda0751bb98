// A trained model with its tokenizer, ready for evaluation and generation.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "data/tokenizer.h"
#include "model/lm.h"
#include "optim/parameter_arena.h"

namespace osdn::train {

struct OpenModel {
  config::Config config;  // of the run that wrote the checkpoint
  int64_t step = 0;
  std::string directory;
  at::Device device = at::kCPU;
  config::Precision precision = config::Precision::kFloat32;  // of the computation
  std::unique_ptr<optim::ParameterArena> arena;               // weights only
  std::unique_ptr<model::LanguageModel> model;
  std::optional<data::Tokenizer> tokenizer;
};

struct OpenOptions {
  config::Device device = config::Device::kAuto;
  /// auto: on a GPU the precision of the run, on a CPU float32.
  config::Precision precision = config::Precision::kAuto;
  std::optional<std::string> tokenizer;  // replaces the path of the run's configuration
};

/// From a run, checkpoints or step directory (open_checkpoint).
OpenModel open_model(const std::string& path, const OpenOptions& options);

}  // namespace osdn::train
