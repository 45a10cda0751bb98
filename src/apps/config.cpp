#include "apps/config.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/yaml.h"
#include "model/lm.h"
#include "train/setup.h"

namespace osdn::apps {
namespace {

struct ConfigOptions {
  std::string file;
  std::vector<std::string> overrides;
  bool parameters = false;
};

CLI::App* add_file_command(CLI::App& parent, const std::string& name, const std::string& purpose,
                           const std::shared_ptr<ConfigOptions>& options) {
  CLI::App* command = parent.add_subcommand(name, purpose);
  command->add_option("FILE", options->file, "YAML file of a run")->required();
  command->add_option("--set", options->overrides, "Override a key: --set train.steps=100 (repeatable)")
      ->allow_extra_args(false);
  command->add_flag("--parameters", options->parameters,
                    "Add the number of parameters and the FLOPs of a token");
  return command;
}

// YAML comments, so that the output stays a configuration.
std::string parameter_lines(const config::Config& config, const std::string& file) {
  std::optional<int64_t> vocab_size = config.model.vocab_size;
  if (!vocab_size)
    if (const auto tokenizer = train::open_tokenizer(config.data)) vocab_size = tokenizer->vocab_size();
  if (!vocab_size)
    throw UserError(
        "{}: model.vocab_size: value missing: the parameter count needs it, or data.tokenizer to take it "
        "from",
        file);
  const int64_t count = model::count_parameters(model::parameter_specs(config.model, *vocab_size));
  return fmt::format("# parameters: {}\n# training FLOPs per token: {:.4g}\n", count,
                     model::training_flops_per_token(config.model, *vocab_size, config.data.sequence_length));
}

}  // namespace

void add_config(CLI::App& root) {
  CLI::App* command = root.add_subcommand("config", "Validate a configuration, or show the effective one");
  command->require_subcommand(1);
  command->footer(
      "Example:\n  osdn config check configs/osdn_delta_net_340m.yaml\n"
      "  osdn config print configs/osdn_delta_net_340m.yaml --parameters --set model.num_layers=12");

  const auto options = std::make_shared<ConfigOptions>();
  CLI::App* check =
      add_file_command(*command, "check", "Validate strictly; exit code 0 when the file is valid", options);
  check->footer("Example:\n  osdn config check configs/quickstart.yaml --set train.steps=100");
  check->callback([options] {
    const config::Config config = config::load(options->file, options->overrides);
    const std::string lines = options->parameters ? parameter_lines(config, options->file) : "";
    fmt::print("{}: valid\n{}", options->file, lines);
  });

  CLI::App* print =
      add_file_command(*command, "print", "Print the effective configuration with every key", options);
  print->footer("Example:\n  osdn config print configs/quickstart.yaml --parameters");
  print->callback([options] {
    const config::Config config = config::load(options->file, options->overrides);
    std::string text = config::dump(config);
    if (options->parameters) text += parameter_lines(config, options->file);
    std::fputs(text.c_str(), stdout);
  });

  CLI::App* reference =
      command->add_subcommand("reference", "Print every key with type, default and meaning (Markdown)");
  reference->footer("Example:\n  osdn config reference > docs/config.md");
  reference->callback([] { std::fputs(config::reference_page().c_str(), stdout); });
}

}  // namespace osdn::apps
