// The arguments that every command with a trained model has: which, on what device, in what precision.
#pragma once

#include <optional>
#include <string>

#include "train/open_model.h"

namespace CLI {
class App;
}

namespace osdn::apps {

struct ModelArguments {
  std::string checkpoint;
  std::optional<std::string> tokenizer;
  std::string device = "auto";
  std::string precision = "auto";
};

/// Adds CHECKPOINT, --tokenizer, --device and --precision, read into `arguments`.
void add_model_arguments(CLI::App& command, ModelArguments* arguments);

train::OpenModel open_model(const ModelArguments& arguments);

/// "cuda, bfloat16", for people.
std::string describe_computation(const train::OpenModel& open);

}  // namespace osdn::apps
