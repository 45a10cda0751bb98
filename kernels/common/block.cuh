// What the warps of a block share: the memory that a launch asks for, and barriers of some of them.
// tests/emulation has the same functions in C++ for a CPU.
#pragma once

namespace osdn::kernels {

/// The shared memory that a launch asks for, aligned to 16 bytes.
extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];

/// Returns once `threads` threads, whole warps, are at barrier number `barrier`, 1 to 15; all of them name
/// the same count. What they wrote before is then seen by all of them. Not the aligned form (bar.sync), which
/// all threads of a barrier have to come to by one and the same instruction: warps come from their own code.
__device__ inline void barrier_of(int barrier, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace osdn::kernels
