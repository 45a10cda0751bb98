// Barriers in shared memory (mbarrier) for warps that hand tiles to each other without all of a block
// meeting. tests/emulation has the same functions in C++ for a CPU.
//
// A barrier's phase ends when as many arrivals as it was made for have come; waiting for the parity of a
// phase returns once that phase has ended. Of a new barrier phase 0 goes on, and a wait for parity 1 returns
// at once.
#pragma once

#include <cstdint>

namespace osdn::kernels {

constexpr int kMbarrierBytes = 8;

/// `barrier`: shared address, a multiple of 8. By one thread; then a barrier of the block.
__device__ inline void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void mbarrier_arrive(uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}

/// An arrival once all copies that this thread has queued (cp.async) are done.
__device__ inline void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void mbarrier_wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900  // returns when the phase has ended, or after some time
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace osdn::kernels
