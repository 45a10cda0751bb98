#include "apps/version.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "tensor/device.h"
#include "tensor/torch.h"
#include "train/environment.h"

namespace osdn::apps {

std::string version_text() {
  return fmt::format("osdn {} (commit {})\nLibTorch {}\nCUDA {}\ncompiler {}", OSDN_VERSION,
                     train::build_commit(), TORCH_VERSION, cuda_versions(), __VERSION__);
}

void add_version(CLI::App& root) {
  CLI::App* command =
      root.add_subcommand("version", "Print the version, the commit and the libraries in use");
  command->footer("Example:\n  osdn version");
  command->callback([] { fmt::print("{}\n", version_text()); });
}

}  // namespace osdn::apps
