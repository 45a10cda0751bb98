#include "apps/bench_exchange.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench/exchange.h"
#include "apps/launch_ranks.h"
#include "base/fs.h"
#include "config/yaml.h"

namespace osdn::apps {
namespace bench_exchange_detail {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  dist::LaunchRequest launch;
  int64_t steps = 12;
};

std::vector<std::string> command_line(const Options& options) {
  std::vector<std::string> words = {"osdn",         "bench",   "exchange",
                                    options.config, "--steps", std::to_string(options.steps)};
  for (const std::string& override : options.overrides) words.insert(words.end(), {"--set", override});
  return words;
}

void print(const config::Config& config, const std::string& file, const bench::ExchangeTimes& times) {
  fmt::print(
      R"({{"op": "exchange", "configuration": "{}", "sequences": {}, "sequence_length": {}, "parameters": {}, )"
      R"("zero": {}, "ranks": {}, "gradients_ms": {:.3f}, "gradients_gb_per_s": {:.1f}, "weights_ms": {:.3f}, )"
      R"("weights_gb_per_s": {:.1f}, "step_ms": {:.2f}, "step_gradients_ms": {:.2f}, "step_alone_ms": {:.2f}, "hidden_share": {:.3f}, "hidden_by_backward": {:.3f}}})"
      "\n",
      std::filesystem::path(file).stem().string(), times.sequences, config.data.sequence_length,
      times.parameters, config.distributed.zero, times.ranks, times.gradients_ms, times.gradients_gb_per_s,
      times.weights_ms, times.weights_gb_per_s, times.step_ms, times.step_gradients_ms, times.step_alone_ms,
      times.hidden_share(), times.hidden_by_backward());
  std::fflush(stdout);
}

ExitCode run(const Options& options) {
  const config::Config config = config::load(options.config, options.overrides);
  const TemporaryDirectory logs;
  return run_ranks(config, options.launch, {.words = command_line(options), .directory = logs.path()},
                   [&](const dist::LaunchEnvironment& launched) {
                     const bench::ExchangeTimes times =
                         bench::measure_exchange(config, launched, options.steps);
                     if (launched.rank == 0) print(config, options.config, times);
                     return ExitCode::kDone;
                   });
}

}  // namespace bench_exchange_detail

void add_bench_exchange(CLI::App& bench) {
  const auto options = std::make_shared<bench_exchange_detail::Options>();
  CLI::App* command = bench.add_subcommand(
      "exchange", "Time what ranks exchange in a training step: alone, and how much of it the passes hide");
  command->add_option("CONFIG", options->config, "YAML file of a run")->required();
  command
      ->add_option("--set", options->overrides,
                   "Override a key: --set train.micro_batch_sequences=8 (repeatable)")
      ->allow_extra_args(false);
  command
      ->add_option("--processes", options->launch.processes,
                   "Processes to start on this node; without it distributed.processes_per_node, or one a GPU")
      ->check(CLI::Range(1, 1024));
  command->add_option("--steps", options->steps, "Measured steps of each kind")
      ->check(CLI::Range(3, 10000))
      ->capture_default_str();
  command->footer("Example:\n  osdn bench exchange configs/delta_net_340m.yaml --processes 2");
  command->callback([options] {
    const ExitCode code = bench_exchange_detail::run(*options);
    if (code != ExitCode::kDone) throw CLI::RuntimeError(static_cast<int>(code));
  });
}

}  // namespace osdn::apps
