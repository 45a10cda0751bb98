// kernels/common/block.cuh for a CPU.
#pragma once

#include "tests/emulation/cuda_on_cpu.h"

namespace osdn::kernels {

inline unsigned char* const dynamic_shared_bytes = emulation::shared_memory;

inline void barrier_of(int barrier, int threads) { emulation::meet_at(barrier, threads); }

}  // namespace osdn::kernels
