// New memory filled with NaN, so that what a kernel leaves unwritten shows.
#pragma once

#include "tests/support/test.h"

namespace osdn::test {

class PoisonedMemory {
 public:
  PoisonedMemory() {
    at::globalContext().setDeterministicAlgorithms(true, true);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
  }
  ~PoisonedMemory() {
    at::globalContext().setDeterministicAlgorithms(false, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;
};

}  // namespace osdn::test
