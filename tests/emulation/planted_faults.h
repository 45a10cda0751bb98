// Small kernels for the race check's own test (race_check_test.cpp): each right, or with one fault.
#pragma once

namespace osdn::emulation {

enum class Planted {
  kBlockBarrier,    // read what another warp wrote
  kWarpBarrier,     // what another lane wrote
  kReuse,           // write what another warp has read
  kCopyWait,        // read what a copy brought
  kCopySource,      // overwrite what a copy reads
  kCopiesOverlap,   // two copies to one place
  kRing,            // stages that copying warps hand to computing warps and back, and around
  kRingSoonFull,    // of which the computing warps await the wrong phase
  kGroup,           // wgmma reads what threads wrote
  kGroupFence,      // with a proxy fence between
  kGroupReuse,      // what wgmma has read is written anew
  kNamedBarrier,    // two warps of three meet
  kBarrierCount,    // naming the same number of threads
  kMissingThreads,  // all threads that have not ended meet
  kForgotten,       // a phase of an mbarrier gets all its arrivals
  kDivergedWarp,    // lanes of a warp meet at the same instruction
  kBlocks,          // blocks of a launch write different memory
  kBlocksRead,      // and do not read what others write
  kStatic,          // a __shared__ variable
  kLongCopy,        // an aggregate copied as one
};

/// Runs the kernel, with its fault or without.
void run_planted(Planted which, bool faulty);

/// Accesses of `bytes` (2, 4, 8 or 16) at the same place of shared memory by two warps, none of them ordered:
/// two writes, or a write and a read.
void run_unordered(int bytes, bool second_reads);

/// A sum of a warpgroup's product, 16 times 1 * 1, as it is after the wait for it or before.
float sum_of_product(bool waited_for);

}  // namespace osdn::emulation
