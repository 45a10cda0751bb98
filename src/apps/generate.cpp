#include "apps/generate.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>

#include "apps/text_stream.h"
#include "base/error.h"
#include "base/log.h"
#include "model/generate.h"
#include "tensor/torch.h"
#include "train/open_model.h"

namespace osdn::apps {
namespace {

struct GenerateOptions {
  std::string checkpoint;
  std::vector<std::string> prompts;
  std::vector<std::string> stops;
  std::optional<std::string> tokenizer;
  std::string device = "auto";
  model::SamplingOptions sampling;
};

config::Device parse_device(const std::string& name) {
  if (name == "cpu") return config::Device::kCpu;
  if (name == "cuda") return config::Device::kCuda;
  return config::Device::kAuto;
}

void generate(const GenerateOptions& options) {
  train::OpenModel open =
      train::open_model(options.checkpoint, parse_device(options.device), options.tokenizer);
  if (!open.tokenizer)
    throw UserError("generate: {} names no tokenizer; pass --tokenizer tokenizer.model", open.directory);
  const data::Tokenizer& tokenizer = *open.tokenizer;
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& prompt : options.prompts) {
    std::vector<int32_t> ids = tokenizer.encode(prompt);
    if (tokenizer.bos_id() >= 0) ids.insert(ids.begin(), tokenizer.bos_id());
    prompts.push_back(std::move(ids));
  }
  model::SamplingOptions sampling = options.sampling;
  // A new document begins with bos (and ends with eos where prepare.add_eos is set): either ends a text.
  sampling.stop_token = open.config.prepare.add_eos ? tokenizer.eos_id() : tokenizer.bos_id();

  // One prompt streams as it is decoded; several are printed whole, one after the other.
  const bool streams = prompts.size() == 1;
  std::vector<TextStream> texts(prompts.size(), TextStream(options.stops));
  if (streams) std::fputs(options.prompts[0].c_str(), stdout);
  const auto on_token = [&](int64_t prompt, int32_t token) {
    TextStream& text = texts[static_cast<size_t>(prompt)];
    const std::string ready =
        token == sampling.stop_token ? std::string() : text.push(tokenizer.piece_bytes(token));
    if (streams) {
      std::fputs(ready.c_str(), stdout);
      std::fflush(stdout);
    }
    return text.stopped();
  };
  model::generate(*open.model, prompts, sampling, open.device, on_token);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string rest = texts[i].finish();
    if (streams)
      std::printf("%s\n", rest.c_str());
    else
      std::printf("%s%s\n", options.prompts[i].c_str(), texts[i].text().c_str());
  }
}

}  // namespace

void add_generate(CLI::App& root) {
  const auto options = std::make_shared<GenerateOptions>();
  options->sampling.max_new_tokens = 128;
  CLI::App* command =
      root.add_subcommand("generate", "Continue prompts by recurrent decoding with constant memory");
  command->add_option("CHECKPOINT", options->checkpoint, "Run directory, or one of its checkpoints")
      ->required();
  command->add_option("--prompt", options->prompts, "Text to continue (repeatable: a batch)")
      ->required()
      ->allow_extra_args(false);
  command->add_option("--max-tokens", options->sampling.max_new_tokens, "New tokens at most")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--temperature", options->sampling.temperature, "0: greedy")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "Sample among the k likeliest; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--top-p", options->sampling.top_p, "Sample among the likeliest of this total probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      ->add_option("--repetition-penalty", options->sampling.repetition_penalty,
                   "Above 1 discourages repeats")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", options->sampling.seed, "Of the sampling")->capture_default_str();
  command->add_option("--stop", options->stops, "Text that ends the output, not printed (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--tokenizer", options->tokenizer, "Replaces the path stored with the run");
  command->add_option("--device", options->device, "auto, cuda or cpu")
      ->check(CLI::IsMember({"auto", "cuda", "cpu"}));
  command->footer(
      "Example:\n  osdn generate runs/quickstart-osdn --prompt \"The baker\" --temperature 0.8 --top-k 40");
  command->callback([options] { generate(*options); });
}

}  // namespace osdn::apps
