#include "apps/version.h"

#include <fmt/format.h>

#include "tensor/device.h"
#include "tensor/torch.h"
#include "train/environment.h"

namespace osdn::apps {

std::string version_text() {
  return fmt::format("osdn {} (commit {})\nLibTorch {}\nCUDA {}\ncompiler {}", OSDN_VERSION,
                     train::build_commit(), TORCH_VERSION, cuda_versions(), __VERSION__);
}

}  // namespace osdn::apps
