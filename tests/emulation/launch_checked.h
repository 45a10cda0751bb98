// Launches of kernels on the CPU whose races, and waits without end, are a test's failures.
#pragma once

#include <string>
#include <vector>

#include "tests/emulation/race_check.h"
#include "tests/support/catch.h"

namespace osdn::kernels::emulation_test {

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

}  // namespace osdn::kernels::emulation_test
