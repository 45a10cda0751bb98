#include "train/environment.h"

#include <unistd.h>

#include <ctime>
#include <fstream>

#include "base/error.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::train {
namespace {

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    return colon == std::string::npos ? line : line.substr(colon + 2);
  }
  return "unknown";
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

constexpr const char* kBitRelevant[] = {"commit",   "compiler", "processor",  "threads", "device",
                                        "libtorch", "cuda",     "world_size", "gpu",     "cpu_capability"};

}  // namespace

Json describe_environment(at::Device device, int64_t world_size,
                          const std::vector<std::string>& command_line) {
  return {{"program", "osdn " OSDN_VERSION},
          {"commit", build_commit()},
          {"compiler", __VERSION__},
          {"libtorch", TORCH_VERSION},
          {"cuda", cuda_versions()},
          {"host", host_name()},
          {"processor", processor_name()},
          {"cpu_capability", at::get_cpu_capability()},
          {"threads", at::get_num_threads()},
          {"device", device.str()},
          {"gpu", device.is_cuda() ? gpu_description() : "none"},
          {"world_size", world_size},
          {"command_line", command_line},
          {"started", utc_now()}};
}

std::vector<std::string> bit_relevant_differences(const Json& before, const Json& now) {
  std::vector<std::string> found;
  for (const char* field : kBitRelevant) {
    const Json old_value = before.value(field, Json());
    if (old_value != now[field])
      found.push_back(fmt::format("{}: {} -> {}", field, old_value.dump(), now[field].dump()));
  }
  return found;
}

}  // namespace osdn::train
