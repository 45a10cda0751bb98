// Kernels that start before the one queued before them has ended (programmatic dependent launch, compute
// capability 9.0): their blocks come onto the device as its last blocks leave, set up what needs nothing of
// it and wait. tests/emulation has the same functions in C++ for a CPU.
//
// A kernel that is launched to start early (launch_early_kernel) touches nothing before
// `wait_for_kernel_before` that the kernel before it writes, and writes nothing that that one reads. One of
// its threads at least calls it, so that whatever is queued behind finds both ended.
#pragma once

namespace osdn::kernels {

/// The kernel queued behind this one may come once all blocks of this one have called this or ended.
__device__ inline void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Returns when the kernel queued before this one has ended and what it wrote is there.
__device__ inline void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace osdn::kernels
