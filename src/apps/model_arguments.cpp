#include "apps/model_arguments.h"

#include <CLI/CLI.hpp>

#include "tensor/torch.h"

namespace osdn::apps {

void add_model_arguments(CLI::App& command, ModelArguments* arguments) {
  command
      .add_option("CHECKPOINT", arguments->checkpoint,
                  "Run directory (its newest intact checkpoint), or a checkpoint's directory")
      ->required();
  command.add_option("--tokenizer", arguments->tokenizer, "Replaces the path stored with the run");
  command.add_option("--device", arguments->device, "auto, cuda or cpu")
      ->check(CLI::IsMember({"auto", "cuda", "cpu"}))
      ->capture_default_str();
  command
      .add_option("--precision", arguments->precision,
                  "auto (float32 on a CPU, the run's on a GPU), float32 or bfloat16")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}))
      ->capture_default_str();
}

train::OpenModel open_model(const ModelArguments& arguments) {
  train::OpenOptions options{.tokenizer = arguments.tokenizer};
  if (arguments.device == "cpu") options.device = config::Device::kCpu;
  if (arguments.device == "cuda") options.device = config::Device::kCuda;
  if (arguments.precision == "float32") options.precision = config::Precision::kFloat32;
  if (arguments.precision == "bfloat16") options.precision = config::Precision::kBfloat16;
  return train::open_model(arguments.checkpoint, options);
}

std::string describe_computation(const train::OpenModel& open) {
  return std::string(open.device.is_cuda() ? "cuda, " : "cpu, ") +
         (open.precision == config::Precision::kBfloat16 ? "bfloat16" : "float32");
}

}  // namespace osdn::apps
