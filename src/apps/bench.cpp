#include "apps/bench.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "apps/bench/run.h"
#include "apps/bench_exchange.h"
#include "base/error.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::apps {
namespace bench_detail {

struct Options {
  bench::Selection selection;
  std::string device = "auto";
};

void run(const Options& options) {
  if (options.device == "cuda" && num_gpus() == 0)
    throw EnvironmentError("bench: --device cuda: no GPU ({})", no_gpu_reason());
  const bool gpu = options.device != "cpu" && num_gpus() > 0;
  if (!bench::run(options.selection, gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU)))
    throw InternalError("bench: a case above failed its check against the reference and was not timed");
}

}  // namespace bench_detail

void add_bench(CLI::App& root) {
  const auto options = std::make_shared<bench_detail::Options>();
  CLI::App* command =
      root.add_subcommand("bench", "Time the ops and the training step: checked first, a JSON line a case");
  command->add_option("OP", options->selection.ops, "delta_rule, step, ...; all of them without");
  command
      ->add_option("--shape", options->selection.shapes,
                   "Only cases whose shape has this part, e.g. \"T2048 H8\" (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--gate", options->selection.gate, "Only this decay of the delta rule")
      ->check(CLI::IsMember({"none", "scalar", "channel"}));
  command
      ->add_option("--write-key", options->selection.write_key,
                   "Only this write key of the delta rule: the key itself, a given one, or OSDN's scan")
      ->check(CLI::IsMember({"none", "given", "scan"}));
  command->add_option("--pass", options->selection.pass, "Only this one")
      ->check(CLI::IsMember({"forward", "forward+backward", "step", "recorded step", "apart", "library"}));
  command->add_option("--device", options->device, "auto, cuda or cpu")
      ->check(CLI::IsMember({"auto", "cuda", "cpu"}))
      ->capture_default_str();
  command->footer("Example:\n  osdn bench delta_rule --gate none --pass forward");
  add_bench_exchange(*command);
  command->callback([command, options] {
    if (command->get_subcommands().empty()) bench_detail::run(*options);
  });
}

}  // namespace osdn::apps
