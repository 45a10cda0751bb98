// kernels/common/block.cuh for a CPU.
#pragma once

#include "tests/emulation/cuda_on_cpu.h"

namespace osdn::kernels {

inline unsigned char* const dynamic_shared_bytes = emulation::shared_memory;

}  // namespace osdn::kernels
