// Copies that go on by themselves (cp.async) and the barriers in shared memory that tell when they are over
// (mbarrier), on the CPU. Copies are done when they are queued: that somebody touches them too early is found
// by the race check.
#pragma once

#include <cstdint>

namespace osdn::emulation {

/// `bytes` from global memory to shared memory at `target`, zeros when not `valid`.
void copy_async(uint32_t target, const void* source, uint32_t bytes, bool valid);

void mbarrier_init(uint32_t barrier, int arrivals);
/// An arrival of this thread, or of the copies that it has queued.
void mbarrier_arrive(uint32_t barrier, bool of_copies);
void mbarrier_wait(uint32_t barrier, int parity);
/// A new block has no barriers.
void forget_mbarriers();

}  // namespace osdn::emulation
