// Launches of kernels on the CPU whose races, and waits without end, are a test's failures. With
// OSDN_ON_DEVICE: on a GPU, where a sanitizer may look for them.
#pragma once

#ifdef OSDN_ON_DEVICE
#include <cuda_bf16.h>

#include "tests/emulation/device_copy.h"
#else
#include <string>
#include <vector>

#include "tests/emulation/cuda_on_cpu.h"
#include "tests/emulation/race_check.h"
#include "tests/support/catch.h"
#endif

namespace osdn::kernels::emulation_test {

#ifdef OSDN_ON_DEVICE

template <typename Args>
void launch_checked(const Args& args) {
  DeviceCopy::upload_all();
  launch(args, nullptr);
  DeviceCopy::download_all();
}

#else

template <typename Args>
void launch_checked(const Args& args) {
  const emulation::RaceCheck races;
  std::vector<std::string> faults;
  try {
    launch(args, nullptr);
  } catch (const emulation::KernelFault& fault) {
    faults.emplace_back(fault.what());
  }
  for (const std::string& fault : races.faults()) faults.push_back(fault);
  for (const std::string& fault : faults) {
    INFO(fault);
    CHECK(fault.empty());
  }
}

#endif

/// Another device's shared memory a block, while this lives. Only the emulation has other devices: cases with
/// it carry the tag [emulated_device].
class SharedLimit {
 public:
#ifdef OSDN_ON_DEVICE
  explicit SharedLimit(int /*bytes*/) {}
#else
  explicit SharedLimit(int bytes) { emulation::shared_limit = bytes; }
  ~SharedLimit() { emulation::shared_limit = emulation::kSharedBytes; }
#endif
  SharedLimit(const SharedLimit&) = delete;
  SharedLimit& operator=(const SharedLimit&) = delete;
};

}  // namespace osdn::kernels::emulation_test
