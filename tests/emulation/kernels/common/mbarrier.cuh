// kernels/common/mbarrier.cuh for a CPU.
#pragma once

#include "tests/emulation/copies_and_barriers.h"

namespace osdn::kernels {

constexpr int kMbarrierBytes = 8;

using emulation::mbarrier_init;
using emulation::mbarrier_wait;
inline void mbarrier_arrive(uint32_t barrier) { emulation::mbarrier_arrive(barrier, false); }
inline void mbarrier_arrive_after_copies(uint32_t barrier) { emulation::mbarrier_arrive(barrier, true); }

}  // namespace osdn::kernels
