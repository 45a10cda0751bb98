// kernels/common/mbarrier.cuh for a CPU.
#pragma once

#include "kernels/common/mma.cuh"

namespace osdn::kernels {

constexpr int kMbarrierBytes = 8;

/// What a barrier's eight bytes hold.
struct EmulatedMbarrier {
  uint16_t arrivals;
  uint16_t missing;
  uint32_t parity;
};

inline void mbarrier_init(uint32_t barrier, int arrivals) {
  const auto count = static_cast<uint16_t>(arrivals);
  write_shared_as(barrier, EmulatedMbarrier{count, count, 0});
}
inline void mbarrier_arrive(uint32_t barrier) {
  auto state = read_shared_as<EmulatedMbarrier>(barrier);
  if (state.missing == 0) std::abort();
  if (--state.missing == 0) state = {state.arrivals, state.arrivals, state.parity ^ 1};
  write_shared_as(barrier, state);
}
inline void mbarrier_arrive_after_copies(uint32_t barrier) { mbarrier_arrive(barrier); }
inline void mbarrier_wait(uint32_t barrier, int parity) {
  while (read_shared_as<EmulatedMbarrier>(barrier).parity == static_cast<uint32_t>(parity))
    emulation::let_others_run();
}

}  // namespace osdn::kernels
